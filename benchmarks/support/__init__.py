"""What several benchmarks need: servers as processes, the load client, counting of copies."""
