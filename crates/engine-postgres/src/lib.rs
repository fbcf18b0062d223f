//! The metadata engine on postgres.
