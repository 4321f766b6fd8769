//! Cron expressions.
