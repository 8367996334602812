package container_test

// probes are what a hostile root of a member tries.
var probes = map[string]func() (string, error){}
