//! Cross-cutting services: capture and replay, scheduling, kernel cache tools.
