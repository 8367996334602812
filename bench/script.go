package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// side makes and removes the members of a cluster.
type side interface {
	// Create returns when SSH answers on all members.
	Create(ctx context.Context, members int) error
	// Check proves that the cluster can be used: an MPI launch over all its members, as the user, prints a line a member.
	Check(ctx context.Context, members int) error
	// Delete returns when nothing is left.
	Delete(ctx context.Context) error
}

// script is a side made by one of the peers' scripts.
type script struct {
	path string
	dir  string
	env  []string
}

func (s script) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, s.path, args...)
	cmd.Env = append(os.Environ(), s.env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s %s: %w: %s", filepath.Base(s.path), strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

func (s script) Create(ctx context.Context, members int) error {
	_, err := s.run(ctx, "create", s.dir, strconv.Itoa(members))
	return err
}

func (s script) Delete(ctx context.Context) error {
	_, err := s.run(ctx, "delete", s.dir)
	return err
}

func (s script) Check(ctx context.Context, members int) error {
	pid, err := s.run(ctx, "pid", s.dir, "0")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "nsenter", "--target", strings.TrimSpace(string(pid)), "--user", "--mount", "--pid", "--net", "--ipc", "--uts",
		"--setuid", "1000", "--setgid", "1000", "env", "HOME=/home/hpc", "OMPI_MCA_orte_default_hostfile=/etc/hostfile",
		"mpirun", "-np", strconv.Itoa(members), "hostname")
	cmd.Dir = "/"
	var stderr bytes.Buffer // mpirun warns there about what it can't do outside a session
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("an MPI launch on the members of %s: %w: %s", filepath.Base(s.path), err, stderr.String())
	}
	return checkHosts(string(out), members)
}

// checkHosts tells whether every member printed its own name.
func checkHosts(out string, members int) error {
	names := map[string]bool{}
	for _, line := range strings.Fields(out) {
		names[line] = true
	}
	if len(names) != members {
		return fmt.Errorf("an MPI launch over %d members reached %d: %s", members, len(names), out)
	}
	return nil
}

// capabilities are those of Nearmetal's container stack, and of the script's template.
var capabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETGID", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// seccompProfile writes the profile that Nearmetal gives its members, for the script to give to its own.
func seccompProfile(path string) error {
	profile, err := seccomp.GetDefaultProfile(&specs.Spec{
		Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: capabilities}}, Linux: &specs.Linux{},
	})
	if err != nil {
		return fmt.Errorf("the seccomp profile: %w", err)
	}
	profile.Architectures = profile.Architectures[:min(1, len(profile.Architectures))]
	content, err := json.Marshal(profile)
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}
