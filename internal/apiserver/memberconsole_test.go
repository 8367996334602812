package apiserver_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/apiserver/apiservertest"
	"github.com/nearmetal/nearmetal/internal/store/memory"
)

// withMachine starts a site with a ready cluster v1 of virtual machines.
func withMachine(t *testing.T) *apiservertest.Site {
	t.Helper()
	s := apiservertest.New(t, memory.New(), nil)
	s.AddVMNode("n1", 4)
	if _, err := s.LocalClient().CreateCluster(t.Context(), api.ClusterRequest{Name: "v1", Stack: api.StackVM, Environment: "debian", Memory: 512 << 20, Display: true}); err != nil {
		t.Fatal(err)
	}
	s.Place("v1")
	s.MakeReady("v1")
	return s
}

func TestAMembersConsoleIsReachedThroughItsNode(t *testing.T) {
	s := withMachine(t)
	s.Tunnels.Member = func(conn *net.TCPConn) { _, _ = io.WriteString(conn, "login: ") }
	console, err := s.ClientAs("ann", "default", api.RoleMember).ConnectMemberConsole(t.Context(), "v1", "v1-0", api.ConsoleRequest{Write: true, Force: true, By: "bob"})
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(console); err != nil || string(text) != "login: " {
		t.Errorf("the console shows %q, %v", text, err)
	}
	want := fmt.Sprintf(".v1-0.1 %+v", api.ConsoleRequest{Write: true, Force: true, By: "ann"})
	if opened := s.Tunnels.Opened(); len(opened) != 1 || !strings.HasPrefix(opened[0], "n1/") || !strings.HasSuffix(opened[0], want) {
		t.Errorf("opened %q, want one that ends with %q", opened, want)
	}
	display, err := s.ClientAs("ann", "default", api.RoleMember).ConnectMemberDisplay(t.Context(), "v1", "v1-0")
	if err != nil {
		t.Fatal(err)
	}
	_ = display.Close()
	if opened := s.Tunnels.Opened(); len(opened) != 2 || !strings.HasSuffix(opened[1], ".v1-0.1 display") {
		t.Errorf("opened %q, want the display last", opened)
	}
	if _, err := s.ClientAs("val", "default", api.RoleViewer).ConnectMemberDisplay(t.Context(), "v1", "v1-0"); !client.HasCode(err, "forbidden") {
		t.Errorf("a viewer: %v, want it refused", err)
	}
	if _, err := s.ClientAs("val", "default", api.RoleViewer).ConnectMemberConsole(t.Context(), "v1", "v1-0", api.ConsoleRequest{}); !client.HasCode(err, "forbidden") {
		t.Errorf("a viewer: %v, want it refused", err)
	}
}

// consoleErrors makes the errors of consoles of members occur.
func consoleErrors(t *testing.T, containers *apiservertest.Site) []errorCase {
	t.Helper()
	machines := withMachine(t)
	return []errorCase{
		{"no_console", "nearmetal cluster ssh ready ready-0", func() *http.Response {
			return send(t, containers, tunnelRequest("/v1/clusters/ready/members/ready-0/console"))
		}},
		{"no_display", "create a cluster of virtual machines with --display", func() *http.Response {
			return send(t, containers, tunnelRequest("/v1/clusters/ready/members/ready-0/display"))
		}},
		{"invalid_cluster", "have no display", func() *http.Response {
			return send(t, machines, request{method: "POST", path: "/v1/clusters", body: `{"name": "c9", "display": true}`})
		}},
		{"member_not_found", `"x"`, func() *http.Response { return send(t, machines, tunnelRequest("/v1/clusters/v1/members/x/console")) }},
		{"upgrade_required", "HTTP/1.1", func() *http.Response {
			return send(t, machines, request{method: "GET", path: "/v1/clusters/v1/members/v1-0/console"})
		}},
		{"invalid_parameter", "query.write", func() *http.Response {
			return send(t, machines, tunnelRequest("/v1/clusters/v1/members/v1-0/console?write=perhaps"))
		}},
		{"console_in_use", "ann types on this console", func() *http.Response {
			machines.Tunnels.SetBroken(agentstream.TunnelRequest{Failure: "ann types on this console", InUse: true}.Err())
			return send(t, machines, tunnelRequest("/v1/clusters/v1/members/v1-0/console?write=true"))
		}},
		{"member_unreachable", "is off", func() *http.Response {
			machines.Tunnels.SetBroken(agentstream.TunnelRequest{Failure: "its machine is off"}.Err())
			return send(t, machines, tunnelRequest("/v1/clusters/v1/members/v1-0/console"))
		}},
		{"member_unreachable", "is off", func() *http.Response {
			return send(t, machines, tunnelRequest("/v1/clusters/v1/members/v1-0/display"))
		}},
	}
}
