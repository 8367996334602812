// Package loadercache reads and writes the file by which the loader of glibc finds libraries, /etc/ld.so.cache, so that a member's programs find the
// libraries by which they use GPUs. What it reads may be a tenant's, so it may be any bytes. It runs no program, and it must not: an environment's ldconfig
// is a tenant's, too. Start with With.
package loadercache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// ldconfig makes the file (glibc, elf/cache.c and sysdeps/generic/dl-cache.h). A cache, unlike LD_LIBRARY_PATH, holds for each program of a member, however it
// was started.

// Path is where the loader looks.
const Path = "/etc/ld.so.cache"

// With returns a cache with libraries by name before all others that it has. One that can't be read is taken as empty: a tenant's image may have anything there.
// Its loader then finds these libraries, and those of its default folders.
func With(text []byte, libraries map[string]string) []byte {
	cache, err := Parse(text)
	if err != nil {
		cache = &Cache{}
	}
	cache.Add(libraries)
	return cache.Bytes()
}

// Entry is a library in a loader's cache.
type Entry struct {
	// Name is what programs ask for, Path where it is.
	Name, Path string
	// Flags are the kind of library and its architecture.
	Flags int32
	// HWCap is the processor that it needs; bit 62 means that the low half is an index of Cache.Subfolders.
	HWCap uint64
}

// Cache is the content of a loader's cache.
type Cache struct {
	Entries []Entry
	// Subfolders are folders such as x86-64-v3 whose libraries need a newer processor.
	Subfolders []string
}

const (
	cacheMagic = "glibc-ld.so.cache1.1"
	// oldMagic begins caches that older loaders read, too; what is read here follows, aligned to 8 bytes.
	oldMagic      = "ld.so-1.7.0"
	oldHeader     = 16
	oldEntry      = 12
	cacheHeader   = 48
	cacheEntry    = 24
	littleEndian  = 2
	extension     = 0xeaa42174
	sectionHWCaps = 1
	mostCache     = 8 << 20
)

// Parse reads a loader's cache, which may be any bytes.
func Parse(text []byte) (*Cache, error) {
	if len(text) > mostCache {
		return nil, fmt.Errorf("the loader's cache has %d bytes; at most %d are possible", len(text), mostCache)
	}
	if bytes.HasPrefix(text, []byte(oldMagic)) && len(text) >= oldHeader {
		skip := oldHeader + int64(binary.LittleEndian.Uint32(text[12:]))*oldEntry
		skip = (skip + 7) &^ 7
		if skip > int64(len(text)) {
			return nil, errors.New("the loader's cache is cut short")
		}
		text = text[skip:]
	}
	if !bytes.HasPrefix(text, []byte(cacheMagic)) || len(text) < cacheHeader || text[28]&3 != littleEndian && text[28]&3 != 0 {
		return nil, errors.New("the loader's cache has a format that is not known")
	}
	count := int64(binary.LittleEndian.Uint32(text[20:]))
	if cacheHeader+count*cacheEntry > int64(len(text)) {
		return nil, errors.New("the loader's cache is cut short")
	}
	cache := &Cache{}
	for i := range count {
		at := text[cacheHeader+i*cacheEntry:]
		e := Entry{Flags: int32(binary.LittleEndian.Uint32(at)), HWCap: binary.LittleEndian.Uint64(at[16:])}
		var err1, err2 error
		e.Name, err1 = stringAt(text, binary.LittleEndian.Uint32(at[4:]))
		e.Path, err2 = stringAt(text, binary.LittleEndian.Uint32(at[8:]))
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		cache.Entries = append(cache.Entries, e)
	}
	var err error
	cache.Subfolders, err = subfolders(text)
	return cache, err
}

// subfolders reads the extension of a cache.
func subfolders(text []byte) ([]string, error) {
	offset := int64(binary.LittleEndian.Uint32(text[32:]))
	if offset == 0 {
		return nil, nil
	}
	short := errors.New("the extension of the loader's cache is cut short")
	if offset+8 > int64(len(text)) || binary.LittleEndian.Uint32(text[offset:]) != extension {
		return nil, short
	}
	var names []string
	for i := range int64(binary.LittleEndian.Uint32(text[offset+4:])) {
		at := offset + 8 + i*16
		if at+16 > int64(len(text)) {
			return nil, short
		}
		from, size := int64(binary.LittleEndian.Uint32(text[at+8:])), int64(binary.LittleEndian.Uint32(text[at+12:]))
		if binary.LittleEndian.Uint32(text[at:]) != sectionHWCaps {
			continue
		}
		if from+size > int64(len(text)) {
			return nil, short
		}
		for ; size >= 4; from, size = from+4, size-4 {
			name, err := stringAt(text, binary.LittleEndian.Uint32(text[from:]))
			if err != nil {
				return nil, err
			}
			names = append(names, name)
		}
	}
	return names, nil
}

func stringAt(text []byte, offset uint32) (string, error) {
	if int64(offset) >= int64(len(text)) {
		return "", errors.New("the loader's cache has a text outside of itself")
	}
	s, _, found := bytes.Cut(text[offset:], []byte{0})
	if !found || len(s) > 4096 {
		return "", errors.New("the loader's cache has a text without an end")
	}
	return string(s), nil
}

// Add adds libraries by name, before others of the same name.
func (c *Cache) Add(libraries map[string]string) {
	for name, path := range libraries {
		at, _ := slices.BinarySearchFunc(c.Entries, name, func(e Entry, name string) int { return compareNames(name, e.Name) })
		for at > 0 && c.Entries[at-1].Name == name {
			at--
		}
		for at < len(c.Entries) && c.Entries[at].Name == name && c.Entries[at].Flags > NativeFlags {
			at++
		}
		c.Entries = slices.Insert(c.Entries, at, Entry{Name: name, Path: path, Flags: NativeFlags})
	}
}

// Bytes writes the cache as ldconfig does.
func (c *Cache) Bytes() []byte {
	stringsAt := uint32(cacheHeader + len(c.Entries)*cacheEntry)
	var text bytes.Buffer
	known := map[string]uint32{}
	put := func(s string) uint32 {
		if at, ok := known[s]; ok {
			return at
		}
		at := stringsAt + uint32(text.Len())
		known[s] = at
		text.WriteString(s)
		text.WriteByte(0)
		return at
	}
	order := binary.LittleEndian
	var entries []byte
	for _, e := range c.Entries {
		entries = order.AppendUint32(entries, uint32(e.Flags))
		entries = order.AppendUint32(entries, put(e.Name))
		entries = order.AppendUint32(entries, put(e.Path))
		entries = order.AppendUint32(entries, 0)
		entries = order.AppendUint64(entries, e.HWCap)
	}
	var names []byte
	for _, s := range c.Subfolders {
		names = order.AppendUint32(names, put(s))
	}
	header := append([]byte(cacheMagic), make([]byte, cacheHeader-len(cacheMagic))...)
	order.PutUint32(header[20:], uint32(len(c.Entries)))
	order.PutUint32(header[24:], uint32(text.Len()))
	header[28] = littleEndian
	if len(names) == 0 {
		return slices.Concat(header, entries, text.Bytes())
	}
	for text.Len()%4 != 0 {
		text.WriteByte(0)
	}
	at := stringsAt + uint32(text.Len())
	order.PutUint32(header[32:], at)
	var more []byte
	for _, n := range []uint32{extension, 1, sectionHWCaps, 0, at + 24, uint32(len(names))} {
		more = order.AppendUint32(more, n)
	}
	return slices.Concat(header, entries, text.Bytes(), more, names)
}

// compareNames is the order of a cache, the greatest first: numbers within names count by their value (glibc, _dl_cache_libcmp).
func compareNames(a, b string) int {
	digit := func(s string, i int) bool { return i < len(s) && s[i] >= '0' && s[i] <= '9' }
	i, j := 0, 0
	for i < len(a) {
		switch {
		case digit(a, i) && digit(b, j):
			var m, n int32
			for ; digit(a, i); i++ {
				m = m*10 + int32(a[i]-'0')
			}
			for ; digit(b, j); j++ {
				n = n*10 + int32(b[j]-'0')
			}
			if m != n {
				return int(m - n)
			}
		case digit(a, i):
			return 1
		case digit(b, j):
			return -1
		case j >= len(b):
			return int(a[i])
		case a[i] != b[j]:
			return int(a[i]) - int(b[j])
		default:
			i, j = i+1, j+1
		}
	}
	if j < len(b) {
		return -int(b[j])
	}
	return 0
}
