package main

import "testing"

func TestValuesOfABenchmarkStandWithTheirSpread(t *testing.T) {
	got, err := benchmarkLines("goos: linux\nBenchmarkTenantPaths/one_node/tcp_8_B-2  \t  61\t 0.83 a/b\t 0.85 a/b-high\t 0.82 a/b-low\t 5.7 a-µs\t 9 c-ms\t 8 c-ms-q1\t 11 c-ms-q3\nPASS\n")
	const want = `    one node/tcp 8 B
      a-µs                         5.7
      a/b                          0.83 [0.82, 0.85]
      c-ms                         9 (8, 11)
`
	if err != nil || got != want {
		t.Errorf("got %v\n%s\nwant\n%s", err, got, want)
	}
	if _, err := benchmarkLines("PASS\n"); err == nil {
		t.Error("no benchmark ran, and nobody hears of it")
	}
}
