package ethernet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"

	"github.com/nearmetal/nearmetal/internal/netns"
)

// rulesReader runs nft(8). It reads the ruleset only when its generation has changed, which costs one netlink message to
// know; running nft costs milliseconds.
type rulesReader struct {
	mu         sync.Mutex
	known      bool
	generation uint32
	rules      Ruleset
	// printed maps a table's text as rendered here to how this version of nft prints it, should that differ.
	printed map[string]string
}

// read returns this product's tables.
func (r *rulesReader) read(ctx context.Context, node netns.Handle) (Ruleset, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := node.Do(func() error {
		generation, err := rulesGeneration()
		if err != nil {
			return fmt.Errorf("reading the nftables generation: %w", err)
		}
		if r.known && r.generation == generation {
			return nil
		}
		listing, err := runNFT(ctx, "", "-y", "list", "ruleset")
		if err != nil {
			return err
		}
		r.known, r.generation, r.rules = true, generation, parseListing(listing)
		r.translate()
		return nil
	})
	return r.rules, err
}

// load carries out one transaction. When nft prints a table differently than it was given, that is remembered: the
// transaction was carried out as a whole, so what is listed next is what was meant.
func (r *rulesReader) load(ctx context.Context, node netns.Handle, script string) error {
	if err := node.Do(func() error {
		_, err := runNFT(ctx, script, "-f", "-")
		return err
	}); err != nil {
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
				r.rules[name] = Table{Text: text, Sets: table.Sets}
			}
		}
	}
}

// parseScriptTables returns the text of the tables that a script makes anew.
func parseScriptTables(script string) map[string]string {
	tables := map[string]string{}
	for name, table := range parseListing(script) {
		tables[name] = table.Text
	}
	return tables
}

// runNFT runs nft(8) in the network namespace of the calling thread.
func runNFT(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "nft", args...)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if errors.Is(err, exec.ErrNotFound) {
			return "", fmt.Errorf("nft is not found: install the package nftables, and have /usr/sbin in PATH: %w", err)
		}
		return "", fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
