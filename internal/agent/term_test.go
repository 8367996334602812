package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/nearmetal/nearmetal/internal/agentstream"
	"github.com/nearmetal/nearmetal/internal/needs"
)

func TestTheTermOfALeaderIsKeptForItsSiteOnly(t *testing.T) {
	dir := t.TempDir()
	if err := saveTerm(dir, "site1", 7); err != nil {
		t.Fatal(err)
	}
	if got, err := loadTerm(dir, "site1"); err != nil || got != 7 {
		t.Errorf("same site: got %d, %v; want 7", got, err)
	}
	if got, err := loadTerm(dir, "site2"); err != nil || got != 0 {
		t.Errorf("another site: got %d, %v; want 0", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, termFile), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadTerm(dir, "site1"); err == nil {
		t.Error("a damaged file: want an error")
	}
}

func TestANewTermNeedsNoRoomOnTheDisk(t *testing.T) {
	needs.Root(t, "mounts a small disk")
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,nr_inodes=50,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := saveTerm(dir, "s", 9); err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	for i := 0; os.Mkdir(filepath.Join(dir, fmt.Sprint("inode", i)), 0o700) == nil; i++ {
	}
	for term := int64(10); term < 13; term++ {
		if err := saveTerm(dir, "s", term); err != nil {
			t.Errorf("term %d on a full disk: %v", term, err)
		}
		if got, err := loadTerm(dir, "s"); err != nil || got != term {
			t.Errorf("after term %d: got %d, %v", term, got, err)
		}
	}
}

func TestOrdersOfADeposedLeaderAreNotObeyedEvenAfterARestart(t *testing.T) {
	dir := t.TempDir()
	started := func() *Agent {
		term, err := loadTerm(dir, "s")
		if err != nil {
			t.Fatal(err)
		}
		return &Agent{cfg: Config{StateDir: dir, Site: "s", Log: slog.New(slog.DiscardHandler)}, term: term, members: map[string]*memberState{}}
	}
	ctx := context.Background()
	a := started()
	a.obey(ctx, &agentstream.Desired{Term: 5, Revision: 10})
	for _, late := range []*agentstream.Desired{{Term: 4, Revision: 99}, {Term: 5, Revision: 9}} {
		if a.obey(ctx, late); a.desired == late {
			t.Errorf("an order of term %d revision %d was obeyed after term 5 revision 10", late.Term, late.Revision)
		}
	}
	b := started()
	if b.obey(ctx, &agentstream.Desired{Term: 4, Revision: 99}); b.desired != nil {
		t.Error("after a restart an order of term 4 was obeyed; want it refused, since term 5 was obeyed before")
	}
	newer := &agentstream.Desired{Term: 6}
	if b.obey(ctx, newer); b.desired != newer {
		t.Error("the order of a newer leader was not obeyed")
	}
}
