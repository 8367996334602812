package transfer

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"
)

// blockBytes is the granule of what a part is known to hold.
const blockBytes = 1 << 20

// part is a file of which some blocks are there. Which ones is written down after them, into a file beside it. That a machine lost its power in between
// leaves blocks that are not what they are said to be; the file's checksum tells.
type part struct {
	path, state string
	file        *os.File
	came        func(int64)

	mu   sync.Mutex
	size int64 // -1: not known
	// tag is what the source of the blocks said of its file; another tag is another file.
	tag         string
	have, asked []bool
	bytes       int64
	// stream: it is written from its start to its end by somebody else, and holds what the file holds. Its size is not known.
	stream bool
}

// stored is the state of a part as it is written down.
type stored struct {
	SizeBytes int64  `json:"size_bytes"`
	Tag       string `json:"tag,omitempty"`
	// Blocks has bit i%8 of byte i/8 set for block i.
	Blocks []byte `json:"blocks,omitempty"`
	Stream bool   `json:"stream,omitempty"`
}

// openPart opens what an earlier transfer has left, or begins.
func openPart(path string, came func(int64)) (*part, error) {
	p := &part{path: path + ".part", state: path + ".state", came: came, size: -1}
	var err error
	if p.file, err = os.OpenFile(p.path, os.O_RDWR|os.O_CREATE, 0o644); err != nil {
		return nil, &localError{err}
	}
	if !p.load() {
		if err := p.clear(); err != nil {
			p.close()
			return nil, err
		}
	}
	return p, nil
}

// load takes over what is written down; false: that is nothing, or does not fit the file.
func (p *part) load() bool {
	data, err := os.ReadFile(p.state)
	var s stored
	if err != nil || json.Unmarshal(data, &s) != nil || s.SizeBytes < 0 {
		return false
	}
	info, err := p.file.Stat()
	if err == nil && s.Stream {
		p.stream = true
		p.grew(info.Size())
		return true
	}
	if err != nil || info.Size() != s.SizeBytes || len(s.Blocks) != (blocksOf(s.SizeBytes)+7)/8 {
		return false
	}
	p.begin(s.SizeBytes, s.Tag)
	for i := range p.have {
		if s.Blocks[i/8]&(1<<(i%8)) != 0 {
			p.have[i] = true
			p.bytes += p.length(i)
		}
	}
	if p.bytes > 0 {
		p.came(p.bytes)
	}
	return true
}

func blocksOf(size int64) int { return int((size + blockBytes - 1) / blockBytes) }

func (p *part) begin(size int64, tag string) {
	p.size, p.tag = size, tag
	p.have, p.asked, p.bytes = make([]bool, blocksOf(size)), make([]bool, blocksOf(size)), 0
}

// length is how long a block is.
func (p *part) length(i int) int64 { return min(blockBytes, p.size-int64(i)*blockBytes) }

// clear throws away what is there.
func (p *part) clear() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bytes > 0 {
		p.came(-p.bytes)
	}
	p.size, p.tag, p.have, p.asked, p.bytes, p.stream = -1, "", nil, nil, 0, false
	err := os.Remove(p.state)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err = errors.Join(err, p.file.Truncate(0)); err != nil {
		return &localError{err}
	}
	return nil
}

// expect sets the size and the tag of the file. A file of another size than before is errOther, and so is one of another tag where the part came from a
// source that has tags, too.
func (p *part) expect(size int64, tag string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.size == size:
		return nil
	case p.size >= 0:
		return errOther
	}
	had := p.bytes
	if had > size {
		return errOther
	}
	p.begin(size, tag)
	p.stream = false
	for i := range p.have {
		if end := int64(i)*blockBytes + p.length(i); end <= had {
			p.have[i] = true
			p.bytes += p.length(i)
		}
	}
	p.came(p.bytes - had)
	if err := p.file.Truncate(size); err != nil {
		return &localError{err}
	}
	return nil
}

// onlyPrefix throws away what follows the first bytes, and lets somebody else write the file from there on.
func (p *part) onlyPrefix(bytes int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.came(bytes - p.bytes)
	p.size, p.tag, p.have, p.asked, p.bytes, p.stream = -1, "", nil, nil, bytes, true
	if err := p.file.Truncate(bytes); err != nil {
		return &localError{err}
	}
	return p.save()
}

// grew notes how long the file is that somebody else writes.
func (p *part) grew(size int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.came(size - p.bytes)
	p.bytes = size
}

// noteSize notes how much somebody else has written, and whether that is all.
func (p *part) noteSize(whole bool) error {
	info, err := p.file.Stat()
	if err != nil {
		return &localError{err}
	}
	p.grew(info.Size())
	if !whole {
		return nil
	}
	return p.expect(info.Size(), "")
}

// claim picks up to most blocks in a row that are missing and not on their way; n is 0 for none.
func (p *part) claim(most int) (first, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.have {
		if p.have[i] || p.asked[i] {
			continue
		}
		for n = 0; n < most && i+n < len(p.have) && !p.have[i+n] && !p.asked[i+n]; n++ {
			p.asked[i+n] = true
		}
		return i, n
	}
	return 0, 0
}

func (p *part) release(first, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := first; i < first+n && i < len(p.asked); i++ {
		p.asked[i] = false
	}
}

// read takes blocks from r, the first at block first, and writes down each that is whole.
func (p *part) read(r io.Reader, first, n int) error {
	buffer := make([]byte, blockBytes)
	for i := first; i < first+n; i++ {
		data := buffer[:p.length(i)]
		if _, err := io.ReadFull(r, data); err != nil {
			return err
		}
		if err := p.put(i, data); err != nil {
			return err
		}
	}
	return nil
}

// put writes a block, and then that it is there.
func (p *part) put(i int, data []byte) error {
	if _, err := p.file.WriteAt(data, int64(i)*blockBytes); err != nil {
		return &localError{err}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.have[i] {
		return nil
	}
	p.have[i] = true
	p.bytes += int64(len(data))
	p.came(int64(len(data)))
	return p.save()
}

// save writes down which blocks are there; the lock is held. A crash leaves the old state or the new one.
func (p *part) save() error {
	s := stored{SizeBytes: max(p.size, 0), Tag: p.tag, Stream: p.stream, Blocks: make([]byte, (len(p.have)+7)/8)}
	for i, have := range p.have {
		if have {
			s.Blocks[i/8] |= 1 << (i % 8)
		}
	}
	data, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(p.state+".new", data, 0o644)
	}
	if err == nil {
		err = os.Rename(p.state+".new", p.state)
	}
	if err != nil {
		return &localError{err}
	}
	return nil
}

// held is how many bytes are there.
func (p *part) held() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes
}

// missing reports whether blocks are missing, or the size is not known.
func (p *part) missing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size < 0 || p.bytes < p.size
}

// prefix is how many bytes are there from the start.
func (p *part) prefix() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stream {
		return p.bytes
	}
	for i, have := range p.have {
		if !have {
			return int64(i) * blockBytes
		}
	}
	return max(p.size, 0)
}

// sync puts what is there on the disk, as this process's own.
func (p *part) sync() error {
	if err := errors.Join(p.file.Chown(os.Geteuid(), os.Getegid()), p.file.Chmod(0o644), p.file.Sync()); err != nil {
		return &localError{err}
	}
	return nil
}

// finish moves a verified part to its place.
func (p *part) finish(to string) error {
	if err := finishAt(p.path, to); err != nil {
		return err
	}
	_ = os.Remove(p.state) // what is left of it fits no later part, and is removed with it
	return nil
}

func (p *part) close() { _ = p.file.Close() }
