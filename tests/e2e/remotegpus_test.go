package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/needs"
)

// startGPUSite starts a site whose first node hands out so much memory of the machine's own OpenCL device, PoCL.
func startGPUSite(t *testing.T, nodes, serving int, memory string) *site {
	t.Helper()
	program(t, ordinary)
	if vendors, err := filepath.Glob("/etc/OpenCL/vendors/*.icd"); err != nil || len(vendors) == 0 {
		needs.Missing(t, "an OpenCL driver, such as Debian's pocl-opencl-icd")
	}
	programs := filepath.Join(filepath.Dir(program(t, ordinary)), "gpuremote")
	if _, err := os.Stat(filepath.Join(programs, "nearmetal-gpu-server")); err != nil {
		needs.Missing(t, "the programs of remote GPUs (make gpuremote)")
	}
	nothingLeft(t)
	return startSite(t, nodes, "--gpu-programs", programs, "--remote-gpus", "opencl:"+memory, "--remote-gpu-nodes", fmt.Sprint(serving), "--node-cores", "1")
}

// kernels runs one of the eight kernels in a member, with further variables, and returns what it said.
func (s *site) kernels(c api.Cluster, member string, more ...string) answer {
	args := append([]string{"cluster", "ssh", c.Name, member, "--", "env"}, more...)
	return s.cli(append(args, "/run/nearmetal-gpu/lib/nearmetal-gpu-kernels", "--api", "opencl", "--size", "test", "--kernel", "nn")...)
}
