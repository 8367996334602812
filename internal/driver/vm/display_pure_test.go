package vm

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestADisplayIsReachedAtItsOwnersSocketOnly(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "vnc.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	self := uint32(os.Geteuid())
	conn, err := dialOwned(t.Context(), path, self)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if _, err := dialOwned(t.Context(), path, self+1); err == nil || !strings.Contains(err.Error(), "listens there") {
		t.Errorf("a socket on which another user listens: %v", err)
	}
	link := filepath.Join(dir, "link.sock")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, err := dialOwned(t.Context(), link, self); err == nil {
		t.Error("a link is followed")
	}
}

func TestAMachineHasADisplayIfItsGroupAsksForOne(t *testing.T) {
	m := goldenMember()
	without, err := newDomain(m, goldenImage(), viewOf("x"), "0", hardware{}, nil).xml()
	if err != nil || strings.Contains(without, "<graphics") || strings.Contains(without, "<video") {
		t.Errorf("%v; a machine without a display:\n%s", err, without)
	}
	m.Assignment.Display = true
	with, err := newDomain(m, goldenImage(), viewOf("x"), "0", hardware{}, nil).xml()
	if err != nil || !strings.Contains(with, "<listen type='socket' socket='/run/vm/x/display/vnc.sock'/>") {
		t.Errorf("%v; a machine with a display:\n%s", err, with)
	}
}
