package webcache

import (
	"encoding/json"
	"fmt"
	"strconv"
)

// Counters are what a cache has done since it was started, in whole blocks: what a reader asks for a part of counts as a whole.
type Counters struct {
	// Blocks is how many were read.
	Blocks int64
	// HitBytes were in the cache, and MissBytes were fetched. AgainBytes of them had been there before, and had made room.
	HitBytes, MissBytes, AgainBytes int64

	// had are the blocks that were there, by file and the block's first byte.
	had map[string]map[int64]bool
}

// add adds what a report says, a line of JSON. Lines that say something else are left out.
func (c *Counters) add(line string) {
	var said struct {
		Path   string `json:"path"`
		Status string `json:"status"`
		Range  string `json:"range"`
		Length string `json:"length"`
		Code   string `json:"code"`
	}
	if json.Unmarshal([]byte(line), &said) != nil {
		return
	}
	first, bytes, ok := extent(said.Range, said.Length)
	if !ok {
		return
	}
	if c.had == nil {
		c.had = map[string]map[int64]bool{}
	}
	blocks := c.had[said.Path]
	if blocks == nil {
		blocks = map[int64]bool{}
		c.had[said.Path] = blocks
	}
	switch {
	case said.Status == "HIT":
		c.HitBytes += bytes
	case said.Code == "200" || said.Code == "206":
		c.MissBytes += bytes
		if blocks[first] {
			c.AgainBytes += bytes
		}
	default: // an error, of which nothing is kept
		return
	}
	c.Blocks++
	blocks[first] = true
}

// extent is the first byte of an answer, and how many it has: by its Content-Range (RFC 9110, section 14.4), or of a whole file by its length.
func extent(contentRange, length string) (first, bytes int64, ok bool) {
	if contentRange == "" {
		bytes, err := strconv.ParseInt(length, 10, 64)
		return 0, bytes, err == nil
	}
	var last int64
	if _, err := fmt.Sscanf(contentRange, "bytes %d-%d/", &first, &last); err != nil || last < first {
		return 0, 0, false
	}
	return first, last - first + 1, true
}
