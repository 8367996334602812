package etcd_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/internal/store"
	"github.com/nearmetal/nearmetal/internal/store/etcd"
)

func TestAfterAKillTheRestartedServerLeadsAtOnceAndNothingConfirmedIsLost(t *testing.T) {
	if dir := os.Getenv(rerunEnv); dir != "" {
		commitForEver(t, dir)
		return
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), rerunEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var confirmed string
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if key, ok := strings.CutPrefix(lines.Text(), "confirmed "); ok {
			confirmed = key
		}
		if confirmed == "k000100" {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait()

	s := open(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), aliveTTL/2)
	defer cancel()
	l, err := s.Campaign(ctx, "server-1")
	if err != nil {
		t.Fatalf("the restarted server: %v; want that it leads at once, not after its old lease of %s", err, aliveTTL)
	}
	e, ok, err := s.Get(t.Context(), confirmed)
	if !ok || err != nil {
		t.Fatalf("the last confirmed write %q: %v, %v", confirmed, ok, err)
	}
	if l.Term() <= e.Revision {
		t.Errorf("term %d is not newer than the last write at %d", l.Term(), e.Revision)
	}
	snap, err := s.List(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range snap.Entries {
		if want := fmt.Sprintf("k%06d", i); e.Key != want {
			t.Fatalf("write %d is %q, want %q", i, e.Key, want)
		}
	}
	t.Logf("%d writes, last confirmed %s", len(snap.Entries), confirmed)
}

// commitForEver leads and tells of every write that was confirmed, until it is killed.
func commitForEver(t *testing.T, dir string) {
	s, err := etcd.Open(t.Context(), etcd.Config{Dir: dir, LeaderTTL: aliveTTL})
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.Campaign(t.Context(), "server-1")
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; ; i++ {
		key := fmt.Sprintf("k%06d", i)
		if _, err := s.Commit(t.Context(), []store.Cond{l.Guard()}, []store.Op{{Key: key, Value: []byte("x")}}); err != nil {
			t.Fatal(err)
		}
		fmt.Println("confirmed", key)
	}
}

func TestASecondServerOnOneDirectoryIsRefused(t *testing.T) {
	dir := t.TempDir()
	open(t, dir)
	_, err := etcd.Open(t.Context(), etcd.Config{Dir: dir})
	if err == nil || !strings.Contains(err.Error(), "another nearmetal server uses it") {
		t.Errorf("second Open: %v", err)
	}
}

func TestAStoppedServerIsOpenedAgainWithItsState(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	rev, err := s.Commit(t.Context(), nil, []store.Op{{Key: "k", Value: []byte("v")}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	e, ok, err := open(t, dir).Get(t.Context(), "k")
	if !ok || err != nil || e.Revision != rev {
		t.Errorf("after a restart: %+v, %v, %v; want revision %d", e, ok, err, rev)
	}
}

func TestManyRestartsLoseNothing(t *testing.T) {
	const restarts, writes = 12, 90
	t.Parallel()
	dir := t.TempDir()
	for i := range restarts {
		s := open(t, dir)
		snap, err := s.List(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if len(snap.Entries) != i*writes {
			t.Fatalf("after restart %d there are %d writes, want %d", i, len(snap.Entries), i*writes)
		}
		for j := range writes {
			if _, err := s.Commit(t.Context(), nil, []store.Op{{Key: fmt.Sprintf("k/%d/%d", i, j), Value: []byte("x")}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	b.Run("cold", func(b *testing.B) {
		for b.Loop() {
			s := open(b, b.TempDir())
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("warm", func(b *testing.B) {
		dir := b.TempDir()
		for b.Loop() {
			s := open(b, dir)
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkCommit(b *testing.B) {
	s := open(b, b.TempDir())
	for b.Loop() {
		if _, err := s.Commit(b.Context(), nil, []store.Op{{Key: "k", Value: []byte("v")}}); err != nil {
			b.Fatal(err)
		}
	}
}
