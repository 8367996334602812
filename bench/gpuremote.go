package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	// gpuPrograms is where "make gpuremote" puts the server, the front ends and the program that measures.
	gpuPrograms = "bin/gpuremote"
	// gpuDriver stands in for CUDA's driver, so that what is measured is what a remote call adds, whatever the machine has.
	gpuDriver = ".build/gpuremote/release/libfakecuda.so"
	// gpuCopyBytes is the largest copy that is measured, and gpuMemoryMiB what the stand-in has for it.
	gpuCopyBytes = 16 << 20
	gpuMemoryMiB = 1024
	gpuPatience  = 10 * time.Second
)

// remoteGPUs measures single calls and copies of a stand-in for CUDA's driver: directly, through a server by shared memory, and by TCP.
func remoteGPUs(ctx context.Context, o options, work string, log *slog.Logger, text *bytes.Buffer) error {
	program, err := filepath.Abs(filepath.Join(gpuPrograms, "nearmetal-gpu-kernels"))
	if err != nil {
		return err
	}
	driver, err := filepath.Abs(gpuDriver)
	if err != nil {
		return err
	}
	for _, file := range []string{program, driver} {
		if _, err := os.Stat(file); err != nil {
			log.Warn("remote GPUs omitted: not built; make gpuremote builds them", "file", file)
			return nil
		}
	}
	results := filepath.Join(work, "gpuremote")
	if err := os.Mkdir(results, 0o755); err != nil {
		return err
	}
	socket, port := filepath.Join(results, "s"), "127.0.0.1:7710"
	memory := fmt.Sprintf("FAKE_CUDA_MEMORY_MIB=%d", gpuMemoryMiB)
	server := exec.CommandContext(ctx, filepath.Join(gpuPrograms, "nearmetal-gpu-server"), "--cuda", driver, "--listen", "unix:"+socket, "--listen", "tcp:"+port)
	server.Env, server.Stderr = append(os.Environ(), memory), os.Stderr
	if err := server.Start(); err != nil {
		return err
	}
	defer func() { _, _ = server.Process.Kill(), server.Wait() }()
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		if time.Since(begun) > gpuPatience {
			return fmt.Errorf("the server of remote GPUs has not made %s within %v", socket, gpuPatience)
		}
	}
	front := filepath.Join(filepath.Dir(program), "libcuda.so.1")
	for _, way := range []struct{ name, library, address string }{
		{"local", driver, ""},
		{"memory", front, "unix:" + socket},
		{"tcp", front, "tcp:" + port},
	} {
		cmd := exec.CommandContext(ctx, program, "micro", "--api", "cuda", "--library", way.library,
			"--largest-copy", fmt.Sprint(gpuCopyBytes), "--json", filepath.Join(results, "micro-"+way.name+".json"))
		cmd.Env = append(os.Environ(), memory, "NEARMETAL_GPU_SERVER="+way.address)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("calls of GPUs, %s: %w: %s", way.name, err, out)
		}
		log.Info("calls of GPUs", "way", way.name, "load", load())
	}
	page := filepath.Join(o.out, "gpuremote.md")
	if out, err := exec.CommandContext(ctx, program, "report", results, "--markdown", page).CombinedOutput(); err != nil {
		return fmt.Errorf("report on calls of GPUs: %w: %s", err, out)
	}
	report, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	fmt.Fprintf(text, "Calls of remote GPUs beside those of the local driver, on a stand-in for CUDA's driver, on %s at load %s\n%s\n", coresOf(), load(), tables(string(report)))
	return nil
}

// tables are the lines of a page of Markdown that belong to tables.
func tables(page string) string {
	var b strings.Builder
	for line := range strings.Lines(page) {
		if strings.HasPrefix(line, "|") {
			b.WriteString("  " + line)
		}
	}
	return b.String()
}
