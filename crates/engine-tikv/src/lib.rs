//! The metadata engine on tikv.
