package vm_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nearmetal/nearmetal/internal/driver"
	"github.com/nearmetal/nearmetal/internal/driver/vm"
	"github.com/nearmetal/nearmetal/internal/nfs"
	"github.com/nearmetal/nearmetal/internal/nfs/nfstest"
	silence "github.com/nearmetal/nearmetal/internal/patience"
	"github.com/nearmetal/nearmetal/internal/patience/patiencetest"
)

// TestAServerIsReplacedWhoseVolumeDoesNotAnswer although the kernel keeps the process of the one before, which was amid a call.
func TestAServerIsReplacedWhoseVolumeDoesNotAnswer(t *testing.T) {
	disk := patiencetest.Mount(t)
	r, m, dial := serverOf(t, func(m *driver.Member) {
		if err := errors.Join(os.Chown(m.HomeDir, idBase, idBase), os.Chmod(m.HomeDir, 0o777)); err != nil {
			t.Fatal(err)
		}
		m.Mounts = []driver.Mount{{Source: disk.Dir, Path: "/volumes/far"}}
	})
	t.Cleanup(disk.Speak) // before its server is ended
	id := m.Assignment.ID
	far := &nfstest.Client{Do: nfstest.Over(dial()), UID: 1000, GID: 1000}
	root, err := far.Root("/volumes/far")
	if err != nil {
		t.Fatal(err)
	}
	status, reply, err := far.NFS(nfstest.Lookup, nfstest.Args{}.Bytes(root).Bytes([]byte("file")))
	if err != nil || status != 0 {
		t.Fatalf("LOOKUP: status %d, %v", status, err)
	}
	file := reply.Bytes()
	disk.Silence()
	go func() { _, _, _ = far.NFS(nfstest.GetAttr, nfstest.Args{}.Bytes(file)) }() // which is lost with its server
	disk.Await(1)
	home := func() {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; {
			conn := dial()
			_ = conn.SetDeadline(deadline)
			c := &nfstest.Client{Do: nfstest.Over(conn), UID: 1000, GID: 1000}
			root, err := c.Root(nfs.Home)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal("the home does not answer")
			}
			if err != nil { // over the connection of the server before
				continue
			}
			status, _, err := c.NFS(nfstest.FSStat, nfstest.Args{}.Bytes(root))
			if err == nil && status != 0 {
				t.Errorf("the home: status %d", status)
			}
			if err == nil {
				return
			}
		}
	}
	home()
	first := homePID(t, r, id)
	if err := vm.ReplaceHome(r.Driver, t.Context(), m); err != nil {
		t.Fatal(err)
	}
	home()
	if second := homePID(t, r, id); second == first {
		t.Errorf("the server is still process %d", first)
	}
	disk.Speak()
	again := &nfstest.Client{Do: nfstest.Over(dial()), UID: 1000, GID: 1000}
	if status, _, err := again.NFS(nfstest.GetAttr, nfstest.Args{}.Bytes(file)); err != nil || status != 0 {
		t.Errorf("a file of the volume once it answers: status %d, %v", status, err)
	}
}

// TestAnAgentDoesNotWaitForAVolumeThatDoesNotAnswer when it has to start a server anew.
func TestAnAgentDoesNotWaitForAVolumeThatDoesNotAnswer(t *testing.T) {
	disk := patiencetest.Mount(t)
	r, m, _ := serverOf(t, func(*driver.Member) {})
	id := m.Assignment.ID
	if err := vm.EndHome(r.Driver, t.Context(), id); err != nil {
		t.Fatal(err)
	}
	m.HomeDir, m.Mounts = "", []driver.Mount{{Source: filepath.Join(disk.Dir, "file"), Path: "/volumes/far"}} // which has to be looked up each time
	disk.Silence()
	if err := vm.FindHome(r.Driver, m); err != nil { // as Observe does
		t.Fatal(err)
	}
	disk.Await(1)
	if err := vm.EndHome(r.Driver, t.Context(), id); err != nil {
		t.Errorf("ending what tries to start the server: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		err := vm.KeepHome(r.Driver, ctx, m)
		if !errors.Is(err, silence.ErrSilent) || !strings.Contains(err.Error(), "the volume at /volumes/far: it does not answer; see whether the node") {
			t.Errorf("starting it: %v", err)
		}
	}
}
