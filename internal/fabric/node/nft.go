package node

import (
	"context"
	"fmt"
	"sync"

	"github.com/nearmetal/nearmetal/internal/fabric/plan"
	"github.com/nearmetal/nearmetal/internal/netns"
	"github.com/nearmetal/nearmetal/internal/nftables"
	"github.com/nearmetal/nearmetal/internal/wayout"
)

// rulesReader runs nft(8). It reads the ruleset only when its generation has changed, which costs one netlink message to
// know; running nft costs milliseconds.
type rulesReader struct {
	mu         sync.Mutex
	known      bool
	generation uint32
	rules      plan.Ruleset
	listing    wayout.Listing
	docker     wayout.Docker
	// bridge: others have rules for bridged frames. underlay: they have some for packets to or from this node.
	bridge, underlay bool
	// ours maps the text of a table or of a part as this version of nft prints it to how it is rendered here, should that differ.
	ours map[string]string
}

// read returns this product's tables.
func (r *rulesReader) read(ctx context.Context, node netns.Handle) (plan.Ruleset, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := node.Do(func() error {
		generation, err := nftables.Generation()
		if err != nil {
			return fmt.Errorf("reading the nftables generation: %w", err)
		}
		if r.known && r.generation == generation {
			return nil
		}
		text, err := nftables.List(ctx)
		if err != nil {
			return err
		}
		listing, docker := wayout.ParseListing(text), wayout.Docker{}
		if listing.Docker {
			chain, err := nftables.Run(ctx, "", wayout.DockerChain()...)
			if err != nil {
				return err
			}
			docker = wayout.ParseDocker(chain, wayout.BridgeLinks)
		}
		r.known, r.generation, r.rules = true, generation, plan.ParseListing(text)
		r.listing, r.docker, r.bridge, r.underlay = listing, docker, plan.OthersBridge(text), plan.OthersUnderlay(text)
		r.translate()
		return nil
	})
	return r.rules, err
}

// others returns what the last reading said of the rules of others.
func (r *rulesReader) others() (wayout.Listing, wayout.Docker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.listing, r.docker
}

// othersRules reports whether the last reading found rules of others for bridged frames, and for packets to or from this node.
func (r *rulesReader) othersRules() (bridge, underlay bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bridge, r.underlay
}

// load carries out one transaction. When nft prints a table differently than it was given, that is remembered: the
// transaction was carried out as a whole, so what is listed next is what was meant.
func (r *rulesReader) load(ctx context.Context, node netns.Handle, script string) error {
	if err := node.Do(func() error { return nftables.Load(ctx, script) }); err != nil {
		return err
	}
	loaded := plan.ParseListing(script)
	if len(loaded) == 0 {
		return nil
	}
	listed, err := r.read(ctx, node)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.learn(loaded, listed)
	r.translate()
	return nil
}

// learn notes which of the loaded texts are printed differently, and forgets those that are not listed any more.
func (r *rulesReader) learn(loaded, listed plan.Ruleset) {
	present, ours := map[string]bool{}, map[string]string{}
	note := func(text, got string) {
		present[got] = true
		if text != "" && got != "" && text != got {
			ours[got], present[text] = text, true
		}
	}
	for name, table := range listed {
		present[table.Text] = true
		if text := loaded[name].Text; text != plan.Parts(name) {
			note(text, table.Text)
		}
		for part, got := range table.Parts {
			note(loaded[name].Parts[part], got)
		}
	}
	for got, text := range r.ours {
		if present[text] {
			ours[got] = text
		}
	}
	r.ours = ours
}

// translate puts our own text in place of the version of nft's.
func (r *rulesReader) translate() {
	if len(r.ours) == 0 {
		return
	}
	for name, table := range r.rules {
		if text, known := r.ours[table.Text]; known {
			table.Text = text
			r.rules[name] = table
		}
		for part, printed := range table.Parts {
			if text, known := r.ours[printed]; known {
				table.Parts[part] = text
			}
		}
	}
}
