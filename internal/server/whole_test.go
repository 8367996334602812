package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/agent"
	"github.com/nearmetal/nearmetal/internal/agent/agenttest"
	"github.com/nearmetal/nearmetal/internal/cli"
	"github.com/nearmetal/nearmetal/internal/config"
	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/fake"
	fabricfake "github.com/nearmetal/nearmetal/internal/fabric/fake"
	"github.com/nearmetal/nearmetal/internal/fabric/site"
	"github.com/nearmetal/nearmetal/internal/server"
)

// metalSite is a whole server and its node agents, with pretended nodes that carry whole machines, on a pretended fabric.
type metalSite struct {
	t       *testing.T
	dir     string
	address string
	tables  *fabricfake.Tables
	hosts   map[string]*fake.Host
	// stop stops the server.
	stop func()
}

func newMetalSite(t *testing.T) *metalSite {
	t.Helper()
	dir, err := os.MkdirTemp("", "nmwhole") // short: the path of a socket has 108 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &metalSite{t: t, dir: dir, address: "127.0.0.1:0", tables: &fabricfake.Tables{}, hosts: map[string]*fake.Host{}}
	s.serve()
	return s
}

// serve starts the server, again at the address that it had.
func (s *metalSite) serve() {
	s.t.Helper()
	s.prepare(server.Config{
		Server:  config.Server{StateDir: s.dir, Listen: s.address},
		Fabrics: map[string]site.Site{"ib0": fabricfake.NewSite(s.tables)}, Log: slog.New(slog.DiscardHandler),
	})
}

// prepare starts a server with this configuration.
func (s *metalSite) prepare(cfg server.Config) {
	s.t.Helper()
	control, err := server.Open(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.address = control.Addresses()[0]
	ready := make(chan struct{})
	s.stop = s.goes("server", func(ctx context.Context) error { return control.Run(ctx, func() { close(ready) }) })
	<-ready
}

// goes runs a part of the site until the test ends, or what it returns is called.
func (s *metalSite) goes(what string, run func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			s.t.Errorf("%s: %v", what, err)
		}
	}()
	stop = func() { cancel(); <-ended }
	s.t.Cleanup(stop)
	return stop
}

// nodeWith starts the agent of a node with one port on the fabric.
func (s *metalSite) nodeWith(number int, guid string) {
	s.t.Helper()
	s.start(number, api.NodeCapacity{Ports: []api.NodePort{{Name: "0000:3b:00.0", Fabric: "ib0", At: guid}}})
}

// node starts the agent of a node with three cards, or with two ports on the fabric.
func (s *metalSite) node(number int, card bool) {
	s.t.Helper()
	var capacity api.NodeCapacity
	for i := range 3 {
		if card {
			capacity.Devices = append(capacity.Devices, api.Device{
				ID: fmt.Sprint("card", i), Class: "card", Counters: map[string]int64{"slices": 7}, Ways: map[string]api.DeviceWay{"whole": {Takes: map[string]int64{"slices": 7}}},
			})
		} else if i < 2 {
			capacity.Ports = append(capacity.Ports, api.NodePort{Name: fmt.Sprintf("0000:3b:00.%d", i), Fabric: "ib0", At: fmt.Sprintf("0x%d%d", number, i)})
		}
	}
	s.start(number, capacity)
}

// start starts the agent of a node with two cores and these devices and ports.
func (s *metalSite) start(number int, capacity api.NodeCapacity) {
	s.t.Helper()
	name := fmt.Sprint("n", number)
	capacity.Cores, capacity.MemoryBytes = []api.Core{{Slot: 0, CPU: 0}, {Slot: 1, CPU: 1}}, 8<<30
	capacity.NUMANodes = []api.NUMANode{{MemoryBytes: 8 << 30}}
	record := api.NodeRecord{Name: name, Underlay: fmt.Sprint("198.18.0.", number), AgentVersion: "test", Capacity: capacity}
	host, networks := fake.NewHost(), &fabricfake.Fabric{}
	s.hosts[name] = host
	cfg := agent.Config{
		Node: record, StateDir: filepath.Join(s.dir, name), HomeDir: filepath.Join(s.dir, "home"), Fabric: networks,
		Drivers: []driver.Driver{agenttest.Speaking(s.t.Context(), fake.NewMetal(host, networks))},
		Inspect: func(context.Context) []api.EnvironmentOnNode {
			return []api.EnvironmentOnNode{{Name: "local", Stacks: []api.Stack{api.StackMetal}, OK: true}}
		},
		Log: slog.New(slog.DiscardHandler),
	}
	if err := os.MkdirAll(cfg.StateDir, 0o711); err != nil {
		s.t.Fatal(err)
	}
	known, err := agent.OpenCredentials(s.t.Context(), config.Agent{StateDir: s.dir, Server: s.address, Name: name}, cfg.StateDir, cfg.Log)
	if err != nil {
		s.t.Fatal(err)
	}
	known.Use(&cfg)
	s.goes("agent of "+name, func(ctx context.Context) error { return agent.Run(ctx, cfg) })
}

// command runs a command of the command line and wants its exit code.
func (s *metalSite) command(code int, args ...string) string {
	s.t.Helper()
	var out, problems bytes.Buffer
	got := cli.Run(s.t.Context(), cli.Invocation{
		Args: args, Streams: config.Streams{In: strings.NewReader(""), Out: &out, Err: &problems},
		Getenv:   func(name string) string { return map[string]string{"NEARMETAL_STATE": s.dir}[name] },
		Commands: cli.Commands{Keys: server.Keys{Now: time.Now}},
	})
	if got != code {
		s.t.Fatalf("nearmetal %s: exit code %d, want %d\n%s%s", strings.Join(args, " "), got, code, out.String(), problems.String())
	}
	return out.String() + problems.String()
}

// eventually runs a command again until it prints all of these.
func (s *metalSite) eventually(args []string, want ...string) string {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		text, missing := s.command(0, args...), ""
		unaligned := strings.Join(strings.Fields(text), " ")
		for _, w := range want {
			if !strings.Contains(text, w) && !strings.Contains(unaligned, w) {
				missing = w
			}
		}
		if missing == "" {
			return text
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("nearmetal %s never printed %q:\n%s", strings.Join(args, " "), missing, text)
		}
	}
}

// manifest writes that of a cluster of whole machines with a card of another node each, and returns its path.
func (s *metalSite) manifest(name string, size int, queue bool) string {
	path := filepath.Join(s.dir, name+".yaml")
	if err := os.WriteFile(path, fmt.Appendf(nil, `
name: %s
queue: %t
groups:
- name: m
  size: %d
  cores: 1
  memory: 1GiB
  stack: metal
  networks: [data]
  devices:
  - {class: card, way: whole, remote: true}
`, name, queue, size), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// onFabric are the ports that the fabric has in networks.
func (s *metalSite) onFabric() string {
	seen, err := fabricfake.NewSite(s.tables).Observe(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	var places []string
	for _, n := range seen.Networks {
		for _, p := range n.Ports {
			places = append(places, fmt.Sprintf("%d:%s", n.Number, p.At))
		}
	}
	return strings.Join(places, " ")
}

// A cluster of whole machines has two ports each, a card on a third node, and is given back once agents and fabric have proved all of it clean.
func TestAClusterOfWholeMachinesLivesAndLeavesNothing(t *testing.T) {
	s := newMetalSite(t)
	for number := range 2 {
		s.node(number+1, false)
	}
	s.node(3, true)
	for _, name := range []string{"n1", "n2", "n3"} {
		s.eventually([]string{"node", "show", name}, "ready")
	}
	s.eventually([]string{"node", "list", "-o", "json"}, `"n1"`, `"n2"`, `"n3"`, `"card1"`, `"0x21"`)
	s.tables.Delay()
	s.command(0, "cluster", "create", "-f", s.manifest("m1", 2, false), "--no-wait")
	s.eventually([]string{"cluster", "show", "m1"}, "fabric ib0: port 0x10 is not in its network yet")
	s.tables.Settle()
	show := s.eventually([]string{"cluster", "show", "m1"}, "2 of 2 ready", "Phase: ready")
	for _, want := range []string{"data=10.", "card0 (whole) of n3", "card1 (whole) of n3", "0-1"} {
		if !strings.Contains(show, want) {
			t.Errorf("cluster show does not print %q:\n%s", want, show)
		}
	}
	if got, want := s.onFabric(), "1:0x10 1:0x20 2:0x11 2:0x21"; got != want {
		t.Errorf("the fabric has %s, want %s", got, want)
	}
	if ids := s.hosts["n3"].IDs(); len(ids) != 2 {
		t.Errorf("n3 carries %v, want the parts of both members", ids)
	}
	s.checkGPUQuota()
	// The machines are empty, and one switch keeps a port in its network: nobody else gets that machine.
	s.tables.Stick("0x21", true)
	s.command(0, "cluster", "delete", "m1", "--yes", "--no-wait")
	s.eventually([]string{"cluster", "show", "m1"}, "releasing")
	for name, host := range s.hosts {
		for deadline := time.Now().Add(time.Minute); len(host.IDs()) > 0; s.command(0, "cluster", "list") {
			if time.Now().After(deadline) {
				t.Fatalf("%s still carries %v", name, host.IDs())
			}
		}
	}
	s.command(0, "cluster", "create", "m2", "--size", "3", "--stack", "metal", "--no-wait")
	s.eventually([]string{"cluster", "show", "m2"}, "queued", "waits for room") // the machine comes free by itself
	s.command(0, "cluster", "delete", "m2", "--yes")
	s.tables.Stick("0x21", false)
	s.eventually([]string{"cluster", "list", "-o", "json"}, "[]")
	if got := s.onFabric(); got != "" {
		t.Errorf("the fabric still has %s", got)
	}
	if text := s.command(0, "usage", "--by", "cluster"); !strings.Contains(text, "DEVICE-HOURS") || !strings.Contains(text, "card/slices ") {
		t.Errorf("the GPUs of a cluster that is gone are not in its usage:\n%s", text)
	}
	log := s.command(0, "audit", "list")
	for _, want := range []string{"DELETE /v1/clusters/m1", "made /v1/clusters/m1", "socket"} {
		if !strings.Contains(log, want) {
			t.Errorf("the audit log does not have %q:\n%s", want, log)
		}
	}
	if text := s.command(0, "audit", "verify"); !strings.Contains(text, "records are as they were written, from 1") {
		t.Error(text)
	}
}

// checkGPUQuota wants that a project that holds two of three GPUs, all that its quota allows, gets no third, and that they are counted.
func (s *metalSite) checkGPUQuota() {
	s.t.Helper()
	if text := s.command(cli.ExitConflict, "project", "set", "default", "--device", "card/slices=13"); !strings.Contains(text, "--device card/slices: 13 is less than the 14 in use") {
		s.t.Errorf("a quota of less than two GPUs:\n%s", text)
	}
	s.command(0, "project", "set", "default", "--device", "card/slices=14")
	if text := s.command(0, "project", "show", "default"); !strings.Contains(text, "card/slices 14 of 14") {
		s.t.Errorf("project show does not print what is used of which quota:\n%s", text)
	}
	over := `needs 7 card/slices, but project "default" already holds 14 card/slices and the quota is 14 card/slices`
	if text := s.command(cli.ExitRefused, "cluster", "create", "-f", s.manifest("m3", 1, false)); !strings.Contains(text, over) {
		s.t.Errorf("a third GPU is not refused for the quota:\n%s", text)
	}
	if text := s.command(cli.ExitRefused, "cluster", "create", "-f", s.manifest("m4", 3, true)); !strings.Contains(text, "it needs 21 card/slices, but the quota is 14 card/slices") {
		s.t.Errorf("more GPUs than the quota has are not refused for it:\n%s", text)
	}
	s.command(0, "cluster", "create", "-f", s.manifest("m5", 1, true), "--no-wait")
	s.eventually([]string{"cluster", "explain", "m5"}, over)
	s.command(0, "cluster", "delete", "m5", "--yes")
	s.command(0, "project", "set", "default", "--device", "card/slices=0")
	report := s.command(0, "usage", "--by", "project", "-o", "json")
	var used api.UsageReport
	if err := json.Unmarshal([]byte(report), &used); err != nil {
		s.t.Fatal(err)
	}
	for _, row := range used.Rows {
		// Each member holds a machine with its own node's time, and 7 slices over the same time.
		if got := row.DeviceSeconds["card/slices"]; got == 0 || math.Abs(got-7*row.MemberSeconds) > 1e-6*got {
			s.t.Errorf("project %s used %g GPU slice-seconds in %g member-seconds, want 7 in each", row.Project, got, row.MemberSeconds)
		}
	}
	if len(used.Rows) != 1 || len(used.Site) != 1 {
		s.t.Fatalf("the report has %d projects, and %d rows of the site:\n%s", len(used.Rows), len(used.Site), report)
	}
	if site := used.Site[0]; site.Idle.DeviceSeconds["card/slices"] == 0 || site.Capacity.DeviceSeconds["card/slices"] <= site.Allocated.DeviceSeconds["card/slices"] {
		s.t.Errorf("the third GPU is not idle in the account of the site: %+v", site)
	}
}
