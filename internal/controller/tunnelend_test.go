package controller

import (
	"strings"
	"testing"

	"github.com/nearmetal/nearmetal/api"
)

func TestAnEncryptedSiteReachesNodesByTheirKeysOnly(t *testing.T) {
	s := newStored(t)
	put := func(name, key string) {
		s.view(s.repo.PutNode(t.Context(), api.NodeRecord{Name: name, Underlay: "198.18.0." + name[1:], WireGuardKey: key}))
	}
	put("n1", "key1")
	put("n2", "key2")
	put("n3", "")
	d := newDesired()
	d.networks.encrypted = true
	s.cluster("a", 1, "n1", "n2")
	changed, failed := d.update(1, someday, s.cluster("b", 2, "n1", "n3"))
	if err := failed["b"]; err == nil || !strings.Contains(err.Error(), `"n3" has no WireGuard`) {
		t.Errorf("a cluster on a node without WireGuard: got %v, want what to do", err)
	}
	keys := func() map[string]string {
		got := map[string]string{}
		for _, n := range whole(changed["n1"]).Networks {
			if !n.Encrypted {
				t.Errorf("network %d of n1 is not encrypted", n.Index)
			}
			for _, r := range n.Remotes {
				got[r.Peer.String()] = r.Key
			}
		}
		return got
	}
	if got := keys(); len(got) != 1 || got["198.18.0.2"] != "key2" {
		t.Errorf("n1 reaches %v, want n2 by its key", got)
	}
	put("n2", "another")
	changed, _ = d.update(1, someday, s.cache.View())
	if got := keys(); len(got) != 1 || got["198.18.0.2"] != "another" {
		t.Errorf("after a change of the key n1 reaches %v, want n2 by its new key", got)
	}
	plain := newDesired()
	changed, _ = plain.update(1, someday, s.cache.View())
	for _, n := range whole(changed["n1"]).Networks {
		if n.Encrypted {
			t.Errorf("network %d of a site in clear is encrypted", n.Index)
		}
	}
}
