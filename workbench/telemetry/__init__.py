"""Device and process sampling (NVML, psutil)."""
