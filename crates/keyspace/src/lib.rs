//! Records as ordered keys and values, for engines on key-value stores.
