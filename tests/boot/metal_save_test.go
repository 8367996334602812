package boot

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/testbed/vdc"
)

// The files that a whole machine's users changed become an environment, which boots on another machine: the files are there, and no key of the first member is.
func TestFilesOfAWholeMachineBecomeAnEnvironmentWithoutKeys(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{
		{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB}, {Name: "b2", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB},
	})
	s.enrollInspected("b1", api.PowerRedfish)
	s.enrollInspected("b2", api.PowerIPMI)
	s.awaitInspected("b1", "b2")
	s.run("cluster", "create", "m1", "--stack", "metal", "--env", "debian-mpi")
	first := s.cluster("m1").Status.Members[0].Node
	asRoot := func(cluster, script string) string {
		return strings.TrimSpace(s.run("cluster", "ssh", cluster, "--root", "--", "set -e; "+script))
	}
	asRoot("m1", `mkdir -p /opt/solver && printf '#!/bin/sh\necho solved\n' > /opt/solver/run && chmod 4755 /opt/solver/run
		rm /etc/debian_version; rm -r /etc/default && mkdir /etc/default && echo mine > /etc/default/solver
		useradd --system solver; echo old > /var/log/solver.log; echo gone > /var/tmp/scratch
		cp /etc/nearmetal/ssh/id_ed25519 /opt/solver/taken`)
	s.run("cluster", "ssh", "m1", "--", "echo 42 > result; mkdir -m 700 -p .ssh; ssh-keygen -q -t ed25519 -N '' -f .ssh/id_own; echo make >> .bash_history")
	hostKey, machineID := asRoot("m1", "cat /etc/ssh/ssh_host_ed25519_key.pub"), asRoot("m1", "cat /etc/machine-id")

	// Keys are found, by their paths, and nothing is left of the attempt.
	for _, words := range []string{"keys of the cluster itself are in \"/opt/solver/taken\"", "private keys are in \"/home/hpc/.ssh/id_own\""} {
		s.refused(words, "cluster", "save", "m1", "--files", "solver")
	}
	asRoot("m1", "rm /opt/solver/taken")
	s.refused("/home/hpc/.ssh/id_own", "cluster", "save", "m1", "--files", "solver")
	if list := s.run("env", "list"); strings.Contains(list, "solver") {
		t.Errorf("after two refusals there is an environment: %s", list)
	}
	began := time.Now()
	s.run("cluster", "save", "m1", "--files", "solver", "--keep-key", "/home/hpc/.ssh/id_own")
	t.Logf("measured: the files of a machine were an environment after %.0f s", time.Since(began).Seconds())
	s.refused("exists", "cluster", "save", "m1", "--files", "solver", "--keep-key", "/home/hpc/.ssh/id_own")
	if status := s.cluster("m1").Status; status.Phase != api.ClusterReady {
		t.Errorf("the saved cluster is %s", status.Phase)
	}
	s.run("cluster", "delete", "m1", "--yes")

	s.run("node", "drain", first)
	s.run("cluster", "restore", "m2", "--files", "solver") // a cluster of the same shape
	if node := s.cluster("m2").Status.Members[0].Node; node == first {
		t.Errorf("the second cluster is on %s, too", node)
	}
	for what, want := range map[string]string{
		"/opt/solver/run; stat -c %a /opt/solver/run":                       "solved\n4755",
		"cat /home/hpc/result; stat -c %U /home/hpc/result":                 "42\nhpc",
		"cat /home/hpc/.bash_history":                                       "make",
		"ls /etc/default; cat /etc/default/solver":                          "solver\nmine",
		"test ! -e /etc/debian_version && echo gone":                        "gone",
		"id -un $(id -u solver)":                                            "solver",
		"test ! -e /var/log/solver.log && test ! -e /var/tmp/scratch; echo": "",
		"grep -c '^root:\\*:' /run/nearmetal/layers/1/etc/shadow":           "1",
	} {
		if got := asRoot("m2", what); got != want {
			t.Errorf("%s: got %q, want %q", what, got, want)
		}
	}
	if asRoot("m2", "cat /etc/ssh/ssh_host_ed25519_key.pub") == hostKey || asRoot("m2", "cat /etc/machine-id") == machineID {
		t.Error("the second member has the identity of the first")
	}
	// The layer itself, which the machine has as it was made.
	keys := strings.Fields(asRoot("m2", "cd /run/nearmetal/layers/1; grep -rlE 'BEGIN [A-Z ]*PRIVATE KEY' . || true"))
	if !slices.Equal(keys, []string{"./home/hpc/.ssh/id_own"}) {
		t.Errorf("keys in the layer: %v", keys)
	}
	if left := asRoot("m2", "cd /run/nearmetal/layers/1; ls -d etc/nearmetal var/lib/nearmetal etc/machine-id etc/ssh/ssh_host* root/.ssh/authorized_keys run tmp 2>/dev/null || true"); left != "" {
		t.Errorf("the layer has what is never saved: %s", left)
	}
	t.Logf("the layer has:\n%s", asRoot("m2", "cd /run/nearmetal/layers/1; find . | sort | head -150"))
	if hosts := s.saidByRanks("m2", 2, "hostname"); !slices.Equal(hosts, []string{"m2-0", "m2-0"}) {
		t.Errorf("two ranks ran on %v", hosts)
	}
	s.run("cluster", "delete", "m2", "--yes")
	s.run("env", "delete", "solver")
}

// A machine loses its power while its files are saved: the save fails, and nothing is left of it.
func TestASaveWhoseMachineDiesLeavesNothing(t *testing.T) {
	s := newSite(t, []vdc.MachineConfig{{Name: "b1", Firmware: api.FirmwareBIOS, MemoryMiB: memoryMiB}})
	s.enrollInspected("b1", api.PowerRedfish)
	s.awaitInspected("b1")
	s.run("cluster", "create", "m1", "--stack", "metal", "--env", "debian-mpi")
	s.run("cluster", "ssh", "m1", "--root", "--", "head -c 300M /dev/urandom > /opt/large")
	failed := make(chan error, 1)
	go func() {
		_, err := s.try("cluster", "save", "m1", "--files", "solver")
		failed <- err
	}()
	incoming := filepath.Join(s.dir, "images", "incoming")
	received := func() (bytes int64) {
		entries, _ := os.ReadDir(incoming)
		for _, e := range entries {
			if info, err := e.Info(); err == nil {
				bytes += info.Size()
			}
		}
		return bytes
	}
	s.until(time.Minute, "a part of the files to be received", func() bool { return received() > 1<<20 })
	must(t, s.dc.CutPower("b1"))
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "did not come whole") {
		t.Errorf("the save ended with %v", err)
	}
	if left := received(); left != 0 {
		t.Errorf("%d bytes are left of the save", left)
	}
	if list := s.run("env", "list") + s.run("env", "builds"); strings.Contains(list, "solver") {
		t.Errorf("after a save that failed there are: %s", list)
	}
	s.run("cluster", "delete", "m1", "--yes")
}
