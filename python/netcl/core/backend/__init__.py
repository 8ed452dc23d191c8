"""The two transports: OpenCL and the native CPU."""
