package virtioport

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestAPortIsFoundByItsName(t *testing.T) {
	class := t.TempDir()
	for device, name := range map[string]string{"vport3p1": "nearmetal.guest\n", "vport3p2": "nearmetal.agent\n", "vport3p3": ""} {
		if err := os.Mkdir(filepath.Join(class, device), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(class, device, "name"), []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := find(class, "nearmetal.agent"); got != "vport3p2" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := find(class, "nearmetal"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("part of a name: got %v, want that there is no such port", err)
	}
	if _, err := Open("no such port of this machine"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a machine without ports: %v", err)
	}
}

func TestAClosedListenerAcceptsNothing(t *testing.T) {
	l := Listen("no such port of this machine")
	if _, err := l.Accept(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a port that is not there: %v", err)
	}
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}
