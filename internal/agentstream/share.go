package agentstream

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/nearmetal/nearmetal/internal/driver"
)

// Share is what all nodes of a cluster have in common: the leader renders it once for each generation, and a thousand streams send the same
// bytes. A node that has a former share is sent what differs. It never changes; make it with NewShare.
type Share struct {
	index int
	files string // digest of the files
	texts []*sharedText
	whole string // digest of everything
}

// NewShare describes the cluster of a network index. peers are the underlay addresses of all nodes that its members reach each other over,
// files those that each of its members has, as text. Neither may change afterwards.
func NewShare(index int, peers []netip.Addr, files []driver.File) (*Share, error) {
	var addresses strings.Builder
	for _, peer := range slices.SortedFunc(slices.Values(peers), netip.Addr.Compare) {
		addresses.WriteString(peer.String() + "\n")
	}
	s := &Share{index: index}
	for _, f := range slices.Concat([]driver.File{{Content: []byte(addresses.String())}}, files) {
		text, err := newSharedText(index, f)
		if err != nil {
			return nil, err
		}
		s.texts = append(s.texts, text)
	}
	slices.SortFunc(s.texts, func(a, b *sharedText) int { return strings.Compare(a.Path, b.Path) })
	s.name()
	return s, nil
}

// Index is that of the cluster's network.
func (s *Share) Index() int { return s.index }

// name makes the names of what a share says.
func (s *Share) name() {
	s.files = FilesDigest(s.content())
	sum := sha256.Sum256([]byte(s.addresses() + s.files))
	s.whole = hex.EncodeToString(sum[:])
}

// content returns the files of a share, in the order of their paths.
func (s *Share) content() []driver.File {
	var files []driver.File
	for _, t := range s.texts {
		if t.Path != "" {
			files = append(files, driver.File{Path: t.Path, Content: []byte(t.Text), Mode: t.Mode, OwnedByUser: t.OwnedByUser})
		}
	}
	return files
}

// addresses returns those of the peers, a line each.
func (s *Share) addresses() string {
	for _, t := range s.texts {
		if t.Path == "" {
			return t.Text
		}
	}
	return ""
}

// NodeShare is a share as one node has it.
type NodeShare struct {
	*Share
	// Self is the node's own address among the peers.
	Self netip.Addr
}

// Same reports whether two shares say the same; either may be nil.
func (s *Share) Same(other *Share) bool {
	if s == nil || other == nil {
		return s == other
	}
	return s.index == other.index && s.whole == other.whole
}

// sharedText is one file of a share; without a path, the addresses of the peers, a line each.
type sharedText struct {
	Index       int    `json:"index"`
	Path        string `json:"path,omitempty"`
	Mode        uint32 `json:"mode,omitempty"`
	OwnedByUser bool   `json:"owned_by_user,omitempty"`
	Text        string `json:"text"`

	key, digest string
	encoded     json.RawMessage

	mu sync.Mutex
	// edits are the changes from other texts to this one, by the digests of those; nil for one that is no shorter than the text.
	edits map[string]json.RawMessage
}

func newSharedText(index int, f driver.File) (*sharedText, error) {
	if !utf8.Valid(f.Content) {
		return nil, fmt.Errorf("the shared file %s is not UTF-8 text", f.Path)
	}
	t := &sharedText{Index: index, Path: f.Path, Mode: f.Mode, OwnedByUser: f.OwnedByUser, Text: string(f.Content)}
	t.key = textKey(t)
	encoded, err := encode(t)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(encoded)
	t.encoded, t.digest, t.edits = encoded, hex.EncodeToString(sum[:]), map[string]json.RawMessage{}
	return t, nil
}

func textKey(t *sharedText) string { return fmt.Sprintf("%05d %s", t.Index, t.Path) }

// editOf returns the change that makes this text of another, or nil when it is better sent whole. It is made once for all streams.
func (t *sharedText) editOf(was *sharedText) (json.RawMessage, error) {
	if t.Mode != was.Mode || t.OwnedByUser != was.OwnedByUser {
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	edit, known := t.edits[was.digest]
	if known {
		return edit, nil
	}
	edit, err := encode(difference(was.Text, t.Text))
	if err != nil {
		return nil, err
	}
	if len(edit) >= len(t.encoded) {
		edit = nil
	}
	t.edits[was.digest] = edit
	return edit, nil
}

// textList describes the texts of shares.
func textList() list[desiredParts] {
	return list[desiredParts]{
		name: "text",
		changes: func(before, after *desiredParts, emit emitter) error {
			old, next := differing(before.Shares, after.Shares)
			for _, t := range next {
				was := old[t.key]
				delete(old, t.key)
				if was == t || was != nil && was.digest == t.digest {
					continue
				}
				changed := item{Key: t.key, Value: t.encoded}
				if was != nil {
					edit, err := t.editOf(was)
					if err != nil {
						return err
					}
					if edit != nil {
						changed.Value, changed.Edit = nil, edit
					}
				}
				if err := emit(changed); err != nil {
					return err
				}
			}
			return emitGone(old, emit)
		},
		decode: func(raw json.RawMessage) (any, error) {
			t := new(sharedText)
			err := json.Unmarshal(raw, t)
			return t, err
		},
		edit: func(was any, raw json.RawMessage) (any, int, error) {
			var edits []splice
			if err := json.Unmarshal(raw, &edits); err != nil {
				return nil, 0, err
			}
			old := was.(*sharedText)
			text, err := spliced(old.Text, edits)
			return &sharedText{Index: old.Index, Path: old.Path, Mode: old.Mode, OwnedByUser: old.OwnedByUser, Text: text}, len(text), err
		},
		fill: func(into *desiredParts, elements []any) {
			for _, t := range elements {
				into.Texts = append(into.Texts, t.(*sharedText))
			}
		},
	}
}

// differing returns the texts of the shares before, by their keys, and of those after, but for shares that are in both.
func differing(before, after []NodeShare) (map[string]*sharedText, []*sharedText) {
	shares := map[*Share]bool{}
	for _, s := range before {
		shares[s.Share] = true
	}
	var next []*sharedText
	for _, s := range after {
		if !shares[s.Share] {
			next = append(next, s.texts...)
		}
		delete(shares, s.Share)
	}
	old := map[string]*sharedText{}
	for s := range shares {
		for _, t := range s.texts {
			old[t.key] = t
		}
	}
	return old, next
}

// Whole returns a desired state in which networks and members have what their shares say, and no share is left: what the agent is given.
func (d *Desired) Whole() (*Desired, error) {
	whole := *d
	whole.Shares = nil
	of := map[int]*wholeShare{}
	for _, s := range d.Shares {
		made, err := newWholeShare(s)
		if err != nil {
			return nil, err
		}
		of[s.index] = made
	}
	whole.Networks = slices.Clone(d.Networks)
	for i := range whole.Networks {
		if s := of[whole.Networks[i].Index]; s != nil {
			whole.Networks[i].Peers = s.peers
		}
	}
	whole.Members = slices.Clone(d.Members)
	for i := range whole.Members {
		m := &whole.Members[i]
		if m.Release || m.Assignment.IsPart() || len(m.Networks) == 0 {
			continue
		}
		if s := of[m.Networks[0].Index]; s != nil {
			m.FilesDigest = joinDigests(m.FilesDigest, s.digest)
			m.Files = slices.SortedFunc(slices.Values(slices.Concat(m.Files, s.files)), func(a, b driver.File) int {
				return cmp.Compare(a.Path, b.Path)
			})
		}
	}
	return &whole, nil
}

// wholeShare is a share as one node takes it.
type wholeShare struct {
	digest string
	peers  []netip.Addr
	files  []driver.File
}

func newWholeShare(s NodeShare) (*wholeShare, error) {
	w := &wholeShare{digest: s.Share.files, files: s.content()}
	for line := range strings.Lines(s.addresses()) {
		peer, err := netip.ParseAddr(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, fmt.Errorf("the peers of network %d: %w", s.index, err)
		}
		if peer != s.Self {
			w.peers = append(w.peers, peer)
		}
	}
	return w, nil
}

// sharesOf puts the shares of a node together from their texts, which are in the order of their keys.
func sharesOf(texts []*sharedText, selves map[int]netip.Addr) []NodeShare {
	var shares []NodeShare
	for _, t := range texts {
		if len(shares) == 0 || shares[len(shares)-1].index != t.Index {
			shares = append(shares, NodeShare{&Share{index: t.Index}, selves[t.Index]})
		}
		s := shares[len(shares)-1]
		s.texts = append(s.texts, t)
	}
	for _, s := range shares {
		s.name()
	}
	return shares
}

// FilesDigests returns the digests of the files that members should have, by assignment ID, as the agent will report them.
func (d *Desired) FilesDigests() map[string]string {
	of := map[int]NodeShare{}
	for _, s := range d.Shares {
		of[s.index] = s
	}
	digests := make(map[string]string, len(d.Members))
	for i := range d.Members {
		m := &d.Members[i]
		digests[m.Assignment.ID] = m.FilesDigest
		if len(m.Networks) == 0 || m.Assignment.IsPart() {
			continue
		}
		if s, shares := of[m.Networks[0].Index]; shares && !m.Release {
			digests[m.Assignment.ID] = joinDigests(m.FilesDigest, s.files)
		}
	}
	return digests
}

// joinDigests names the files of a member by the digests of its own and of those it shares.
func joinDigests(own, shared string) string {
	sum := sha256.Sum256([]byte(own + " " + shared))
	return hex.EncodeToString(sum[:16])
}
