package agent

import (
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
)

func TestTheLoadOfTheProcessorIsWhatServersUsedOfTheirCPUs(t *testing.T) {
	server := func(id, device string, used float64) driver.ServedGPU {
		return driver.ServedGPU{ID: id, Devices: []string{device}, CPUSeconds: used, CPUs: 2}
	}
	for name, c := range map[string]struct {
		before, now []driver.ServedGPU
		want        float64
		known       bool
	}{
		"half of two CPUs":                {[]driver.ServedGPU{server("a", "opencl0", 5)}, []driver.ServedGPU{server("a", "opencl0", 15)}, 0.5, true},
		"two servers share them":          {[]driver.ServedGPU{server("a", "opencl0", 0), server("b", "opencl0", 0)}, []driver.ServedGPU{server("a", "opencl0", 5), server("b", "opencl0", 10)}, 0.75, true},
		"never more than all":             {[]driver.ServedGPU{server("a", "opencl0", 0)}, []driver.ServedGPU{server("a", "opencl0", 900)}, 1, true},
		"a server that has started since": {nil, []driver.ServedGPU{server("a", "opencl0", 9)}, 0, true},
		"a server that started anew":      {[]driver.ServedGPU{server("a", "opencl0", 9)}, []driver.ServedGPU{server("a", "opencl0", 1)}, 0, true},
		"servers of GPUs do not count":    {[]driver.ServedGPU{server("a", "GPU-a", 0)}, []driver.ServedGPU{server("a", "GPU-a", 9)}, 0, false},
		"no server":                       {nil, nil, 0, false},
	} {
		if got, known := processorLoad(c.before, c.now, 10*time.Second); got != c.want || known != c.known {
			t.Errorf("%s: got %v, known: %t; want %v, %t", name, got, known, c.want, c.known)
		}
	}
}
