package server_test

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband"
	"github.com/nearmetal/nearmetal/internal/fabric/site/infiniband/opensm"
	"github.com/nearmetal/nearmetal/internal/ibsim"
	"github.com/nearmetal/nearmetal/internal/needs"
	"github.com/nearmetal/nearmetal/internal/server"
)

// A cluster of whole machines is ready once OpenSM has put their ports into its partition, and gone when the tables say so.
func TestAClusterOfWholeMachinesHasAPartitionOfARealSubnetManager(t *testing.T) {
	for _, program := range []string{"ibsim", "opensm", "ibnetdiscover"} {
		needs.Program(t, program)
	}
	dir, err := os.MkdirTemp("", "nmib") // short: the path of a socket has 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	fabric, err := ibsim.Start(t.Context(), dir, ibsim.OneSwitch(3))
	if err != nil {
		t.Fatal(err)
	}
	manager := infiniband.Manager{GUID: fabric.Hosts[2].PortGUID(), Priority: 5}
	partitions := filepath.Join(dir, "partitions.conf")
	t.Cleanup(func() {
		if err := opensm.Stop(context.WithoutCancel(t.Context()), partitions); err != nil {
			t.Error(err)
		}
		if err := fabric.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &metalSite{t: t, dir: dir, address: "127.0.0.1:0", hosts: map[string]*fake.Host{}}
	s.prepare(server.Config{
		Server: config.Server{StateDir: dir, Listen: s.address}, Log: slog.New(slog.DiscardHandler),
		InfiniBand: map[string]server.InfiniBand{"ib0": {
			Settings: infiniband.Settings{Mode: infiniband.Supervise, Directory: filepath.Join(dir, "ib0"), Partitions: partitions, Manager: &manager, Keys: infiniband.KeysManaged},
			Run: func(ctx context.Context, program string, args ...string) *exec.Cmd {
				return fabric.Command(ctx, "n3", program, args...)
			},
		}},
	})
	for number := range 2 {
		s.nodeWith(number+1, fabric.Hosts[number].PortGUID())
		s.eventually([]string{"node", "show", []string{"n1", "n2"}[number]}, "ready")
	}
	s.command(0, "cluster", "create", "m1", "--size", "2", "--stack", "metal", "--no-wait")
	s.eventually([]string{"cluster", "show", "m1"}, "2 of 2 ready")
	for _, host := range []string{"n1", "n2"} {
		out, err := fabric.Command(t.Context(), host, "smpquery", "-D", "pkeys", "0").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "0x7fff 0x8001") {
			t.Errorf("%s: %v: %s", host, err, out)
		}
	}
	for _, secret := range []string{"keys", "ibdiag.conf", "opensm/opensm.conf"} {
		if info, err := os.Stat(filepath.Join(dir, "ib0", secret)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s, which has the M_Key: %v, %v", secret, info, err)
		}
	}
	s.command(0, "cluster", "delete", "m1", "--yes", "--no-wait")
	s.eventually([]string{"cluster", "list", "-o", "json"}, "[]")
	out, err := fabric.Command(t.Context(), "n1", "smpquery", "-D", "pkeys", "0").CombinedOutput()
	if err != nil || strings.Contains(string(out), "0x8001") {
		t.Errorf("the cluster is gone, and its partition is not: %v: %s", err, out)
	}
}

func TestBadInfiniBandSettingsStopTheServerWithTheirFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ib0.yaml")
	if err := os.WriteFile(file, []byte("mode: adopt\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{file: "mode adopt needs partitions", file + "x": "no such file"} {
		_, err := server.Open(server.Config{
			Server: config.Server{StateDir: t.TempDir(), Listen: "127.0.0.1:0", InfiniBandFiles: map[string]string{"ib0": path}}, Log: slog.New(slog.DiscardHandler),
		})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--infiniband ib0="+path) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
}
