//! The metadata engine on mysql.
