package node

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/nearmetal/nearmetal/internal/netns"
)

func TestLinksAreGoneOnlyWhenNoneOfThemIsFound(t *testing.T) {
	space, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	defer space.Close()
	err = space.Do(func() error {
		for _, name := range []string{"one", "two"} {
			if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}); err != nil {
				return err
			}
		}
		for _, step := range []struct {
			remove []string
			gone   bool
		}{{nil, false}, {[]string{"one"}, false}, {[]string{"one", "two"}, true}, {[]string{"one", "two"}, true}} {
			if err := deleteLinks(step.remove); err != nil {
				return err
			}
			if got := noneFound([]string{"one", "two"}); got != step.gone {
				t.Errorf("after removing %v: none of one and two is found: %v, want %v", step.remove, got, step.gone)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
