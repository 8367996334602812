package memberlink

import (
	"net"
	"strings"
	"testing"
)

// from is a connection that only says where it comes from.
type from struct {
	net.Conn
	address net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.address }

func TestAVirtualMachineIsKnownByItsNumberAndItsRootByItsPort(t *testing.T) {
	machine := vsockMachine{member: "u1.c1-0.1", cid: 7}
	for _, tt := range []struct {
		peer net.Addr
		want string // part of the error, "" for the member
	}{
		{VsockAddr{7, 1023}, ""},
		{VsockAddr{7, 1}, ""},
		{VsockAddr{8, 1023}, "virtual machine 8, not 7"},
		{VsockAddr{2, 1023}, "virtual machine 2, not 7"},
		{VsockAddr{7, 1024}, "not one of root's"},
		{VsockAddr{7, 0}, "not one of root's"},
		{&net.TCPAddr{Port: 7}, "no vsock connection"},
	} {
		name, err := machine.Member(t.Context(), from{address: tt.peer})
		if (err == nil) != (tt.want == "") || err == nil && name != machine.member || err != nil && (name != "" || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%v: got %q, %v; want %q", tt.peer, name, err, tt.want)
		}
	}
}
