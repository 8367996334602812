package metal

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/archive"
	"github.com/nearmetal/nearmetal/internal/changedfiles"
	"github.com/nearmetal/nearmetal/internal/driver"
)

func TestTheFilesOfAMachineAreSavedWithoutThoseOfTheProduct(t *testing.T) {
	m := newMachine(t)
	changes := filepath.Join(t.TempDir(), "upper")
	for _, name := range []string{"opt/solver", "home/hpc/.ssh/id", "etc/nearmetal/ssh/id_ed25519", "etc/machine-id", "var/log/x", "root/.ssh/authorized_keys"} {
		path := filepath.Join(changes, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(name), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	d := m.driver()
	d.cfg.Changes = changes
	member := m.member(t)
	if err := d.SaveFiles(t.Context(), member.Assignment.ID, changedfiles.ForEnvironment, io.Discard); !errors.Is(err, driver.ErrNotFound) {
		t.Errorf("without a member: %v", err)
	}
	if err := d.Start(t.Context(), member); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Clean(t.Context(), member.Assignment.ID) })
	for use, want := range map[changedfiles.Use][]string{
		changedfiles.ForEnvironment: {"home/hpc/.ssh/id", "opt/solver"}, changedfiles.ForMember: {"home/hpc/.ssh/id", "opt/solver", "var/log/x"},
	} {
		var out bytes.Buffer
		if err := d.SaveFiles(t.Context(), member.Assignment.ID, use, &out); err != nil {
			t.Fatal(err)
		}
		var files []string
		if _, err := archive.Walk(t.Context(), &out, func(h *tar.Header, _ io.Reader) error {
			if h.Typeflag == tar.TypeReg {
				files = append(files, h.Name)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(files)
		if !slices.Equal(files, want) {
			t.Errorf("for %q it saved %v, want %v", use, files, want)
		}
	}
}

func TestTheFilesOfAMachineAreSavedOnceAtATime(t *testing.T) {
	m := newMachine(t)
	d, member := m.driver(), m.member(t)
	d.cfg.Changes = filepath.Join(t.TempDir(), "upper")
	if err := os.Mkdir(d.cfg.Changes, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), member); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Clean(t.Context(), member.Assignment.ID) })
	in, out := io.Pipe()
	first := make(chan error, 1)
	go func() { first <- d.SaveFiles(t.Context(), member.Assignment.ID, changedfiles.ForEnvironment, out) }()
	if _, err := in.Read(make([]byte, 1)); err != nil { // it has begun, and waits for its reader
		t.Fatal(err)
	}
	if err := d.SaveFiles(t.Context(), member.Assignment.ID, changedfiles.ForEnvironment, io.Discard); err == nil || !strings.Contains(err.Error(), "being saved already") {
		t.Errorf("a second save: %v", err)
	}
	_ = in.Close()
	if err := <-first; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the first save: %v", err)
	}
	if err := d.SaveFiles(t.Context(), member.Assignment.ID, changedfiles.ForEnvironment, io.Discard); err != nil {
		t.Errorf("a save after it: %v", err)
	}
}
