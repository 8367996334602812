package server_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	"github.com/nearmetal/nearmetal/internal/fabric/site/ethernet/ethernettest"
	"github.com/nearmetal/nearmetal/internal/server"
)

// A cluster of whole machines is ready once the switch has its ports in a VLAN of their own, and gone when the switch says so.
func TestAClusterOfWholeMachinesHasAVLANOfARealSwitch(t *testing.T) {
	sw := ethernettest.NewOVS(t)
	dir := ethernettest.TempDir(t)
	file := filepath.Join(dir, "lan.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, ethernettest.SettingsText, sw.Dir), 0o600); err != nil {
		t.Fatal(err)
	}
	s := &metalSite{t: t, dir: dir, address: "127.0.0.1:0", hosts: map[string]*fake.Host{}}
	s.prepare(server.Config{
		Server: config.Server{StateDir: dir, Listen: s.address, EthernetFiles: map[string]string{"lan": file}}, Log: slog.New(slog.DiscardHandler),
	})
	for number, port := range []string{"sw/a", "sw/b", "sw/c"} {
		s.start(number+1, api.NodeCapacity{Ports: []api.NodePort{{Name: "0000:3b:00.0", Fabric: "lan", At: port}}})
		s.eventually([]string{"node", "show", fmt.Sprint("n", number+1)}, "ready")
	}
	heard := func(from string, want ...string) {
		t.Helper()
		sw.Forwarding()
		if got := sw.Heard(from, sw.Passed); !slices.Equal(got, want) {
			t.Errorf("%v hear port %s, want %v", got, from, want)
		}
	}
	s.command(0, "cluster", "create", "m1", "--size", "2", "--stack", "metal", "--no-wait")
	s.eventually([]string{"cluster", "show", "m1"}, "2 of 2 ready")
	heard("a", "b")
	heard("c")
	s.command(0, "cluster", "create", "m2", "--size", "1", "--stack", "metal", "--no-wait")
	s.eventually([]string{"cluster", "show", "m2"}, "1 of 1 ready")
	heard("a", "b")
	heard("c")
	if first, second := sw.VSCtl("get", "port", "a", "tag"), sw.VSCtl("get", "port", "c", "tag"); first == second {
		t.Errorf("both clusters have VLAN %s", first)
	}
	s.eventually([]string{"fabric", "show", "lan"}, "Technology:  ethernet", "n2    sw/b  sw")
	s.eventually([]string{"fabric", "list"}, "lan       ethernet    1         3      3      2")
	s.eventually([]string{"node", "show", "n1"}, "Data network:  lan:sw/a (0000:3b:00.0)")
	s.eventually([]string{"cluster", "show", "m1"}, "Technology:  vlan")
	s.eventually([]string{"fabric", "audit", "lan"}, "3 ports")
	// The switch stops, so that nobody can say whether the ports have left their VLAN.
	sw.Stop("ovs-vswitchd")
	s.command(0, "cluster", "delete", "m1", "--yes", "--no-wait")
	for _, node := range []string{"n1", "n2"} {
		for deadline := time.Now().Add(time.Minute); len(s.hosts[node].IDs()) > 0; s.command(0, "cluster", "list") {
			if time.Now().After(deadline) {
				t.Fatalf("%s still carries %v", node, s.hosts[node].IDs())
			}
		}
	}
	s.eventually([]string{"cluster", "show", "m1"}, "releasing")
	sw.StartSwitch()
	s.eventually([]string{"cluster", "list", "-o", "json"}, `"m2"`)
	for deadline := time.Now().Add(time.Minute); strings.Contains(s.command(0, "cluster", "list", "-o", "json"), `"m1"`); {
		if time.Now().After(deadline) {
			t.Fatal("the cluster does not end")
		}
	}
	heard("a")
	heard("b")
	sw.Stop("ovsdb-server")
	s.command(0, "cluster", "delete", "m2", "--yes", "--no-wait")
	s.eventually([]string{"fabric", "show", "lan"}, "Alarm: switch sw can't be managed, its ports stay as they are: ")
}

func TestBadSettingsOfSwitchesStopTheServerWithTheirFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, vlans string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("backend: linuxbridge\n"+vlans+"\nswitches: [{name: "+name+", bridge: "+name+", ports: [p]}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	bad, low, high := write("bad", "vlan: 2-9"), write("low", "vlans: 2-9"), write("high", "vlans: 10-19")
	for want, cfg := range map[string]config.Server{
		"--ethernet lan=" + bad + ": ":             {EthernetFiles: map[string]string{"lan": bad}},
		`unknown field "vlan"`:                     {EthernetFiles: map[string]string{"lan": bad}},
		"no such file":                             {EthernetFiles: map[string]string{"lan": bad + "x"}},
		"its vlans, 2-9, have none in common with": {EthernetFiles: map[string]string{"lan": high, "wan": low}},
		"cell ethernet is that of the links":       {EthernetFiles: map[string]string{"ethernet": low}},
		"--ethernet lan: its vlans, 2-9, have":     {EthernetFiles: map[string]string{"lan": low}, VLANPool: "10-19"},
	} {
		cfg.StateDir, cfg.Listen = t.TempDir(), "127.0.0.1:0"
		_, err := server.Open(server.Config{Server: cfg, Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	opened, err := server.Open(server.Config{
		Server: config.Server{StateDir: t.TempDir(), Listen: "127.0.0.1:0", EthernetFiles: map[string]string{"lan": low}, VLANPool: "5-20"}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := opened.Close(); err != nil {
		t.Error(err)
	}
}
