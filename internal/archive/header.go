package archive

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The kinds of entries in a tar file (ustar).
const (
	kindFile    = '0'
	kindHard    = '1'
	kindSymlink = '2'
	kindChar    = '3'
	kindDir     = '5'
	kindFIFO    = '6'
	kindRecords = 'x'
)

const (
	blockBytes = 512
	nameBytes  = 100
	// octalMost is the most that 11 octal digits say.
	octalMost = 1<<33 - 1
)

// entry is one of a tar file. Package archive/tar writes no files with holes, so that entries are written here.
type entry struct {
	kind         byte
	path, target string
	mode         uint32
	uid, gid     uint32
	modified     time.Time
	// size is that of what follows. Of a file with holes, which has sparse set, that is less than its realSize.
	size, realSize int64
	sparse         bool
	attributes     map[string]string
}

// write writes an entry with a header of records (pax) before it, which has everything that may not fit.
func (e *entry) write(out io.Writer) error {
	records := map[string]string{"mtime": timeText(e.modified)}
	for name, value := range e.attributes {
		records["SCHILY.xattr."+escapeKey.Replace(name)] = value
	}
	name := e.path
	if e.sparse {
		records["GNU.sparse.major"], records["GNU.sparse.minor"] = "1", "0"
		records["GNU.sparse.name"], records["GNU.sparse.realsize"] = e.path, strconv.FormatInt(e.realSize, 10)
		name = "GNUSparseFile.0/file"
	} else {
		records["path"] = e.path
	}
	if e.target != "" {
		records["linkpath"] = e.target
	}
	if e.size > octalMost {
		records["size"] = strconv.FormatInt(e.size, 10)
	}
	var text bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(records)) {
		text.WriteString(record(key, records[key]))
	}
	extra := entry{kind: kindRecords, mode: 0o644, size: int64(text.Len())}
	parts := [][]byte{extra.block("PaxHeaders/file", ""), text.Bytes(), make([]byte, padding(extra.size)), e.block(name, e.target)}
	for _, part := range parts {
		if _, err := out.Write(part); err != nil {
			return err
		}
	}
	return nil
}

// escapeKey writes names of attributes as GNU tar does: a record's key ends with "=".
var escapeKey, unescapeKey = strings.NewReplacer("%", "%25", "=", "%3D"), strings.NewReplacer("%25", "%", "%3D", "=")

// block is an entry's ustar header.
func (e *entry) block(name, target string) []byte {
	b := make([]byte, blockBytes)
	octal := func(at, digits int, value int64) {
		copy(b[at:], fmt.Sprintf("%0*o", digits, min(max(value, 0), octalMost)))
	}
	copy(b[:nameBytes], name)
	octal(100, 7, int64(e.mode))
	octal(108, 7, int64(e.uid))
	octal(116, 7, int64(e.gid))
	octal(124, 11, e.size)
	octal(136, 11, e.modified.Unix())
	copy(b[148:], "        ")
	b[156] = e.kind
	copy(b[157:157+nameBytes], target)
	copy(b[257:], "ustar\x0000")
	sum := int64(0)
	for _, c := range b {
		sum += int64(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

// record is one of a pax header: its own length, which counts its digits, a key and a value.
func record(key, value string) string {
	rest := len(key) + len(value) + 3 // " ", "=", and the end of the line
	length := rest + len(strconv.Itoa(rest))
	length = rest + len(strconv.Itoa(length))
	return strconv.Itoa(length) + " " + key + "=" + value + "\n"
}

// timeText writes seconds since 1970, with a fraction.
func timeText(t time.Time) string {
	seconds, nanos, sign := t.Unix(), int64(t.Nanosecond()), ""
	if seconds < 0 {
		sign, seconds = "-", -seconds
		if nanos > 0 {
			seconds, nanos = seconds-1, 1e9-nanos
		}
	}
	if nanos == 0 {
		return fmt.Sprintf("%s%d", sign, seconds)
	}
	return strings.TrimRight(fmt.Sprintf("%s%d.%09d", sign, seconds, nanos), "0")
}

// padding is how many bytes fill the last block of so many.
func padding(size int64) int64 { return -size & (blockBytes - 1) }
