package agent

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/nearmetal/nearmetal/internal/agentstream"
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
