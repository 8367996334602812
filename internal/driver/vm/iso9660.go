package vm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
)

// isoSector is the size of a sector, and of each structure here (ECMA-119).
const isoSector = 2048

// Where things lie, in sectors.
const (
	isoDescriptor = 16
	isoTablesLSB  = 18
	isoTablesMSB  = 19
	isoRoot       = 20
	isoFiles      = 21
)

// isoFile is a file in the root directory.
type isoFile struct {
	name    string
	content []byte
}

// iso9660 writes a file system of a few files in its root directory. Names are lower case; Linux and Windows show them so.
func iso9660(volume string, files []isoFile) ([]byte, error) {
	files = slices.Clone(files)
	slices.SortFunc(files, func(a, b isoFile) int { return strings.Compare(a.name, b.name) })
	sectors := func(n int) int { return (n + isoSector - 1) / isoSector }
	total := isoFiles
	for _, f := range files {
		total += sectors(len(f.content))
	}
	image := make([]byte, total*isoSector)
	var root bytes.Buffer
	root.Write(isoRecord("\x00", isoRoot, isoSector, true))
	root.Write(isoRecord("\x01", isoRoot, isoSector, true))
	at := isoFiles
	for _, f := range files {
		root.Write(isoRecord(strings.ToUpper(f.name)+".;1", at, len(f.content), false))
		copy(image[at*isoSector:], f.content)
		at += sectors(len(f.content))
	}
	if root.Len() > isoSector || len(volume) > 32 {
		return nil, errors.New("too many files, or too long a name, for a file system of this kind")
	}
	copy(image[isoRoot*isoSector:], root.Bytes())
	isoVolume(image[isoDescriptor*isoSector:], volume, total)
	copy(image[(isoDescriptor+1)*isoSector:], "\xffCD001\x01") // no more descriptors
	for sector, order := range map[int]binary.ByteOrder{isoTablesLSB: binary.LittleEndian, isoTablesMSB: binary.BigEndian} {
		table := image[sector*isoSector:]
		table[0] = 1
		order.PutUint32(table[2:], isoRoot)
		order.PutUint16(table[6:], 1)
	}
	return image, nil
}

// isoVolume writes the primary volume descriptor (ECMA-119, section 8.4).
func isoVolume(d []byte, volume string, total int) {
	copy(d, "\x01CD001\x01")
	for i := 8; i < 72; i++ {
		d[i] = ' '
	}
	copy(d[40:], volume)
	both32(d[80:], uint32(total))
	both16(d[120:], 1)
	both16(d[124:], 1)
	both16(d[128:], isoSector)
	both32(d[132:], 10) // the path table: one record of 10 bytes
	binary.LittleEndian.PutUint32(d[140:], isoTablesLSB)
	binary.BigEndian.PutUint32(d[148:], isoTablesMSB)
	copy(d[156:], isoRecord("\x00", isoRoot, isoSector, true))
	for i := 190; i < 813; i++ {
		d[i] = ' '
	}
	for _, date := range []int{813, 830, 847, 864} {
		copy(d[date:], "0000000000000000")
	}
	d[881] = 1
}

// isoRecord is an entry of a directory (ECMA-119, section 9.1).
func isoRecord(name string, sector, size int, dir bool) []byte {
	r := make([]byte, 33+len(name)+(len(name)+1)%2)
	r[0] = byte(len(r))
	both32(r[2:], uint32(sector))
	both32(r[10:], uint32(size))
	copy(r[18:], []byte{125, 1, 1, 0, 0, 0, 0}) // 2025-01-01
	if dir {
		r[25] = 2
	}
	both16(r[28:], 1)
	r[32] = byte(len(name))
	copy(r[33:], name)
	return r
}

// both32 and both16 write numbers in both byte orders.
func both32(at []byte, v uint32) {
	binary.LittleEndian.PutUint32(at, v)
	binary.BigEndian.PutUint32(at[4:], v)
}

func both16(at []byte, v uint16) {
	binary.LittleEndian.PutUint16(at, v)
	binary.BigEndian.PutUint16(at[2:], v)
}
