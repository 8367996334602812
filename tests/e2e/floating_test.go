package e2e

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/api"
)

func TestAFloatingAddressLeadsFromTheHostToItsMemberWhateverReplacesIt(t *testing.T) {
	program(t, ordinary)
	nothingLeft(t)
	s := startSite(t, 2, "--nodes", "2", "--node-cores", "2")
	clean := s.lookAtNodes()
	c := s.cluster("web", 3, "--egress")
	closed := s.cluster("closed", 1)
	var a api.FloatingAddressStatus
	s.mustJSON(&a, "address", "allocate")
	address := a.Address.String()
	s.mustJSON(&a, "address", "assign", address, "web/web-1")
	if a.Node != c.Status.Members[1].Node || a.MemberAddress.String() != member(c, 1) {
		t.Errorf("the address is %+v, want it on the node of web-1, %+v", a, c.Status.Members[1])
	}
	s.wantSSH("the host, at the floating address", address+":22")
	for _, m := range c.Status.Members {
		if out := s.must("cluster", "ssh", "web", m.Name, "--", "timeout 5 bash -c 'exec 3<>/dev/tcp/"+address+"/22 && head -c 4 <&3'"); !strings.Contains(out, "SSH-") {
			t.Errorf("member %s does not reach the floating address: %q", m.Name, out)
		}
	}
	s.wantAddressRefusals(address, closed.Name)

	s.waitReplaced(s.killMembers("web", "web-1"), first(3, "web"))
	s.wantSSH("the host, after the member was replaced", address+":22")
	s.must("address", "assign", address, "web/web-1", "--port", "tcp/2222=22")
	s.wantSSH("the host, at a forwarded port", address+":2222")
	s.wantNoSSH("the host, at a port that is no longer forwarded", address+":22")
	s.stop() // the next agents find what these did
	s.start()
	s.waitForNodes(2)
	s.wantSSH("the host, after a restart", address+":2222")
	s.must("address", "unassign", address)
	s.wantNoSSH("the host, at an address that leads nowhere", address+":2222")
	s.must("address", "release", address)
	s.must("cluster", "delete", "web", "closed", "--yes")
	s.wantNothingOf(c.UID, clean)
}

// greeting is the beginning of what a TCP server says first, or nothing.
func greeting(ctx context.Context, to string) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp4", to)
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	text := make([]byte, 4)
	n, _ := io.ReadFull(conn, text)
	return string(text[:n])
}

func (s *site) wantSSH(what, to string) {
	s.t.Helper()
	s.eventually(20*time.Second, "an SSH server that answers "+what, func() bool { return greeting(s.t.Context(), to) == "SSH-" })
}

func (s *site) wantNoSSH(what, to string) {
	s.t.Helper()
	s.eventually(20*time.Second, "no SSH server that answers "+what, func() bool { return greeting(s.t.Context(), to) == "" })
}

// wantAddressRefusals checks that bad requests about an assigned address are refused with the reason, and change nothing.
func (s *site) wantAddressRefusals(address, closed string) {
	s.t.Helper()
	var before, after []api.FloatingAddressStatus
	s.mustJSON(&before, "address", "list")
	for _, tt := range []struct {
		code int
		want string
		args []string
	}{
		{exitUsage, "is not an address of the floating pool", []string{"address", "allocate", "10.64.0.1"}},
		{exitConflict, "is allocated already", []string{"address", "allocate", address}},
		{exitConflict, "leads to member web-1", []string{"address", "assign", address, "web/web-0"}},
		{exitConflict, "leads to member web-1", []string{"address", "release", address}},
		{exitConflict, "no way out", []string{"address", "assign", address, closed + "/" + closed + "-0"}},
		{exitNotFound, `has no member "web-7"`, []string{"address", "assign", address, "web/web-7"}},
		{exitNotFound, "is not a floating address", []string{"address", "show", "192.0.2.1"}},
		{exitUsage, "write CLUSTER/MEMBER", []string{"address", "assign", address, "web"}},
		{exitUsage, "--port", []string{"address", "assign", address, "web/web-1", "--port", "22"}},
	} {
		if a := s.cli(tt.args...); a.code != tt.code || !strings.Contains(a.err, tt.want) {
			s.t.Errorf("nearmetal %s: exit code %d, %q; want %d, %q", strings.Join(tt.args, " "), a.code, a.err, tt.code, tt.want)
		}
	}
	if s.mustJSON(&after, "address", "list"); len(after) != len(before) || after[0].Member != before[0].Member || len(after[0].Ports) != 0 {
		s.t.Errorf("refusals changed the addresses from %+v to %+v", before, after)
	}
}
