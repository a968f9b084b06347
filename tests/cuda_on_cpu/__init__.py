"""What the tests of the GPU run on where there is none: kernels on the CPU, an emulated CuPy."""
