package api

import (
	"strconv"
	"strings"
)

// DatasetWay is how members read a dataset.
type DatasetWay string

// The ways to read a dataset.
const (
	// DatasetCopy is a whole copy on the member's node, verified before the member starts, as a directory at /datasets/NAME. It is the default.
	DatasetCopy DatasetWay = "copy"
	// DatasetStream gives members the URLs of the files' sources.
	DatasetStream DatasetWay = "stream"
	// DatasetCached gives members URLs that lead to a cache on their node, which fetches what they read, as they read it.
	DatasetCached DatasetWay = "cached"
	// DatasetPreloaded is cached, and all of it is read through the cache, and verified, before the member starts.
	DatasetPreloaded DatasetWay = "preloaded"
	// DatasetAuto leaves the way to placement, which takes the one of copy, stream and cached that is predicted to be the quickest on the member's node. The
	// files are listed like those that are read by URL, whichever way it is: those of a copy by their paths.
	DatasetAuto DatasetWay = "auto"
)

// Cached reports whether members read through a cache on their node.
func (w DatasetWay) Cached() bool { return w == DatasetCached || w == DatasetPreloaded }

// DatasetURLs is the directory in which members find a file for each dataset that they read by URL: NAME.urls, with a URL in each line.
const DatasetURLs = "/etc/nearmetal/datasets"

// FirstCachePort is the port of a member's own loopback at which it reaches the cache of the first dataset that its group asks for; the next one's is the
// next, whether or not those between are cached.
const FirstCachePort = 10940

// DatasetUse is a dataset as a group asks for it.
type DatasetUse struct {
	Name string
	Way  DatasetWay
	// Reads is the fraction of its bytes that a member reads, above 0 and at most 1; 0: nobody has said it. It is for DatasetAuto alone.
	Reads float64
	// Open: the group leaves the way open, and Way is what was decided for a member (For).
	Open bool
}

// ParseDatasetUse reads NAME, NAME:WAY or NAME:auto:READS. The way may be one that does not exist.
func ParseDatasetUse(text string) DatasetUse {
	name, way, given := strings.Cut(text, ":")
	if !given {
		way = string(DatasetCopy)
	}
	use := DatasetUse{Name: name, Way: DatasetWay(way)}
	if first, rest, more := strings.Cut(way, ":"); more && first == string(DatasetAuto) {
		if reads, err := strconv.ParseFloat(rest, 64); err == nil && reads > 0 && reads <= 1 {
			use.Way, use.Reads = DatasetAuto, reads
		}
	}
	return use
}

// String is the use as it is stored: a copy is NAME alone.
func (u DatasetUse) String() string {
	switch {
	case u.Way == DatasetCopy:
		return u.Name
	case u.Reads > 0:
		return u.Name + ":" + string(u.Way) + ":" + strconv.FormatFloat(u.Reads, 'g', -1, 64)
	default:
		return u.Name + ":" + string(u.Way)
	}
}

// For returns the use as a member has it: in the way that was decided with its place, if its group leaves that open.
func (u DatasetUse) For(a *Assignment) DatasetUse {
	if u.Way != DatasetAuto {
		return u
	}
	u.Way, u.Open = DatasetCopy, true // of a member whose place says nothing of it
	if claim := a.DataClaimOf(u.Name); claim != nil {
		u.Way = claim.Way
	}
	return u
}

// DataClaimOf is how a member reads a dataset for which its group leaves that open, nil if nothing was decided of it.
func (a *Assignment) DataClaimOf(name string) *DataClaim {
	for i := range a.Data {
		if a.Data[i].Name == name {
			return &a.Data[i]
		}
	}
	return nil
}

// UseOf returns how a group reads a dataset, by the dataset's name, and its place in the group's list; there is false if the group does not ask for it.
func (g Group) UseOf(name string) (use DatasetUse, at int, there bool) {
	for i, text := range g.Datasets {
		if use := ParseDatasetUse(text); use.Name == name {
			return use, i, true
		}
	}
	return DatasetUse{}, 0, false
}

// PlacedDatasets are the datasets that make a difference to where the group's members go: those of which they have copies, and those whose way is left open.
func (g Group) PlacedDatasets() []DatasetUse {
	var uses []DatasetUse
	for _, text := range g.Datasets {
		if use := ParseDatasetUse(text); use.Way == DatasetCopy || use.Way == DatasetAuto {
			uses = append(uses, use)
		}
	}
	return uses
}
