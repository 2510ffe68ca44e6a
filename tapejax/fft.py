"""torch.fft: discrete Fourier transforms, filled from the op table."""
