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
	// printed maps a table's text as rendered here to how this version of nft prints it, should that differ.
	printed map[string]string
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
	loaded := parseScriptTables(script)
	if len(loaded) == 0 {
		return nil
	}
	listed, err := r.read(ctx, node)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, text := range loaded {
		if got := listed[name].Text; got != "" && got != text {
			if r.printed == nil {
				r.printed = map[string]string{}
			}
			r.printed[text] = got
		}
	}
	r.translate()
	return nil
}

// translate puts our own text in place of the version of nft's.
func (r *rulesReader) translate() {
	for text, printed := range r.printed {
		for name, table := range r.rules {
			if table.Text == printed {
				r.rules[name] = plan.Table{Text: text, Sets: table.Sets}
			}
		}
	}
}

// parseScriptTables returns the text of the tables that a script makes anew.
func parseScriptTables(script string) map[string]string {
	tables := map[string]string{}
	for name, table := range plan.ParseListing(script) {
		tables[name] = table.Text
	}
	return tables
}
