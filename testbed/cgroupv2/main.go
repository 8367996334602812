// Command cgroupv2 runs a command as root in a Debian 12 guest that has only cgroup v2, and exits with its exit code.
//
// It is made for go test: go test -exec "bin/cgroupv2" ./internal/driver/container runs that package's tests in a guest. The guest
// sees this module, and the command's own folder, read-only at their paths here.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/nearmetal/nearmetal/testbed/guest"
)

func main() {
	os.Exit(run())
}

func run() int {
	var (
		cacheDir = flag.String("cache", guest.CacheDir, "`folder` that keeps built guests")
		cpus     = flag.Int("cpus", max(2, min(4, runtime.NumCPU())), "processors of the guest")
		memory   = flag.Int("memory-mib", 2048, "memory of the guest in `MiB`")
		packages = flag.String("packages", "", "Debian `packages` that the guest has besides, separated by commas")
		modules  = flag.String("modules", "", "kernel `modules` that the guest loads, separated by commas")
		share    = flag.String("share", "", "`folder` that the guest sees read-only besides")
		emulator = flag.String("emulator", "", "`path` of QEMU; that of the PATH without")
		adapters = flag.Int("adapters", 0, "`number` of Ethernet adapters with virtual functions, which need QEMU 8.0 or later")
		gpu      = flag.Bool("gpu", false, "give the guest a GPU and an IOMMU")
		timeout  = flag.Duration("timeout", 10*time.Minute, "end the guest after this `time`")
	)
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "cgroupv2: name a command to run in the guest")
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()

	config := guest.Config{CPUs: *cpus, MemoryMiB: *memory, Modules: words(*modules), Command: flag.Args(), Emulator: *emulator, Adapters: *adapters, GPU: *gpu}
	if *share != "" {
		config.Shares = []string{*share}
	}
	code, err := inGuest(ctx, *cacheDir, words(*packages), config)
	if err != nil {
		fmt.Fprintln(os.Stderr, "cgroupv2:", err)
		return 125
	}
	return code
}

// words splits a list at its commas.
func words(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}

// inGuest boots a guest that sees this module and the command's folder besides, and returns the command's exit code.
func inGuest(ctx context.Context, cacheDir string, packages []string, config guest.Config) (int, error) {
	dir, err := os.Getwd()
	if err != nil {
		return 0, err
	}
	root, command := moduleRoot(dir), config.Command
	config.Dir, config.Env, config.Output = dir, environment(), os.Stdout
	config.Shares = append(config.Shares, root)
	if strings.Contains(command[0], "/") {
		path, err := exec.LookPath(command[0])
		if err != nil {
			return 0, err
		}
		if command[0], err = filepath.Abs(path); err != nil {
			return 0, err
		}
		if own := filepath.Dir(command[0]); !strings.HasPrefix(own+"/", root+"/") {
			config.Shares = append(config.Shares, own)
		}
	}
	// The tests of environments make small images themselves.
	config.Image, err = guest.EnsureImage(ctx, cacheDir, append(append(guest.NodePackages(), "erofs-utils", "squashfs-tools"), packages...))
	if err != nil {
		return 0, err
	}
	if config.Adapters > 0 { // its machines boot what it boots
		kernel, err := guest.PlainKernel(ctx, config.Image)
		if err != nil {
			return 0, err
		}
		config.Shares = append(config.Shares, filepath.Dir(kernel))
		config.Env = append(config.Env, "NEARMETAL_GUEST_KERNEL="+kernel)
	}
	machine, err := guest.Start(ctx, config)
	if err != nil {
		return 0, err
	}
	return machine.Wait()
}

// moduleRoot is the nearest folder at or above dir that holds go.mod, else dir.
func moduleRoot(dir string) string {
	for root := dir; root != "/"; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return root
		}
	}
	return dir
}

// environment returns what the guest's command inherits: this product's own variables, and CI, so that a missing program fails there too. Tests
// that need a machine of their own, whose clock they may set, look for NEARMETAL_GUEST.
func environment() []string {
	own := []string{"NEARMETAL_GUEST=1"}
	for _, variable := range os.Environ() {
		if strings.HasPrefix(variable, "NEARMETAL_") || strings.HasPrefix(variable, "CI=") {
			own = append(own, variable)
		}
	}
	return own
}
