"""A FUSE server without libfuse: the kernel's protocol on /dev/fuse itself."""
