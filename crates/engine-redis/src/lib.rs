//! The metadata engine on redis.
