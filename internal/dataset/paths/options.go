package paths

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/internal/dataset"
	"github.com/nearmetal/nearmetal/internal/dataset/predict"
)

// Wish is a dataset that members on a node may have in any way.
type Wish struct {
	Ask
	// Reads is the fraction that each member reads, and ReadsFrom says for people where that is from.
	Reads     float64
	ReadsFrom string
	// Readers read at once, all of them over the way to the source. Here is how many of them share this node's cache, 1 at least.
	Readers, Here int
	// BytesPerWait is what a reader reads before it waits for the next answer; 0: nobody has measured it.
	BytesPerWait float64
	// NoStream and NoCache say why these ways are not possible; "": they are.
	NoStream, NoCache string
	// Cache is the node's, with what it holds of the dataset; nil: it keeps none.
	Cache *CacheHere
}

// CacheHere is the cache of a node, as far as it concerns a dataset.
type CacheHere struct {
	dataset.CacheRoom
	HeldBytes int64
}

// assumedBytesPerWait is what readers are taken to read between two waits of whom nobody has measured it: programs that read columns of files ask for several
// pieces at once, and copy programs for MiBs.
const assumedBytesPerWait = 1 << 20

// readerTrips are the round trips until a file is open: logging in and opening by XRootD, or connecting and the first request of HTTP.
func readerTrips(from string) float64 {
	if strings.HasPrefix(from, "root://") {
		return fromXRootD.Trips
	}
	return 2
}

// notPossible begins what is said of a way that members can't have.
const notPossible = "not possible: "

// Option is a way to a dataset that is possible or not, and what it is predicted to take.
type Option struct {
	Answer
	Way api.DatasetWay
	// reads says for people what members read, and how.
	reads string
}

// Options returns the ways in which members of a node can have a dataset. Those of Answers come first: of these, the node takes the first one.
func (k *Known) Options(w Wish) []Option {
	var all []Option
	for _, a := range k.Answers(w.Ask) {
		all = append(all, Option{Answer: a, Way: api.DatasetCopy})
	}
	if w.Bytes == 0 {
		why := "the size of its files is not known"
		return append(all, Option{Answer: Answer{Choice: predict.Stream, missing: why}, Way: api.DatasetStream}, Option{Answer: Answer{Choice: predict.Cold, missing: why}, Way: api.DatasetCached})
	}
	return append(all, k.streamed(w), k.cached(w))
}

// Taken is the option that is taken: the quickest of the possible ones, or a copy where nothing is predicted.
func Taken(all []Option) int {
	taken, copies := 0, 0
	for i := range all {
		if all[i].Way == api.DatasetCopy {
			if copies++; copies > 1 { // the node takes the first of these
				continue
			}
		}
		if all[i].Known && (!all[taken].Known || all[i].Seconds < all[taken].Seconds) {
			taken = i
		}
	}
	return taken
}

// reader is how members read in parts, and what is known of that.
func (w *Wish) reader(from string, files int) (r predict.Reader, said string) {
	r = predict.Reader{Trips: readerTrips(from) * float64(files), RequestBytes: w.BytesPerWait, RequestTrips: 1}
	said = fmt.Sprintf("%s per wait (measured)", sizeText(w.BytesPerWait))
	if w.BytesPerWait == 0 {
		r.RequestBytes = assumedBytesPerWait
		said = fmt.Sprintf("%s per wait (assumed)", sizeText(assumedBytesPerWait))
	}
	return r, said
}

// streamed is what a member waits that reads its part of each file from the file's first source.
func (k *Known) streamed(w Wish) Option {
	out := Option{Answer: Answer{Choice: predict.Stream, node: w.Node, Known: true}, Way: api.DatasetStream}
	if w.NoStream != "" {
		out.Known, out.missing = false, "not possible: "+w.NoStream
		return out
	}
	for _, p := range partsOf(Ask{Files: w.Files, Bytes: w.Bytes}) {
		f := k.Find(w.Node, p.from)
		if f == nil {
			out.Known, out.missing = false, fmt.Sprintf("what comes from %s per second was never measured", p.from)
			return out
		}
		reader, said := w.reader(p.from, p.files)
		work := predict.Work{Bytes: p.bytes, Reads: w.Reads, Jobs: float64(max(1, w.Readers)), Reader: reader}
		one, ok := choiceOf(predict.Table(work, predict.Ways{Source: &f.Path}), predict.Stream)
		if !ok {
			continue
		}
		out.add(k, p.from, f, one)
		out.reads = w.saysReads(said)
	}
	return out
}

// cached is what a member waits that reads its part of each file through the node's cache.
func (k *Known) cached(w Wish) Option {
	out := Option{Answer: Answer{Choice: predict.Cold, node: w.Node}, Way: api.DatasetCached}
	origin, why := dataset.OriginOf(w.Files)
	switch {
	case w.NoCache != "":
		why = w.NoCache
	case w.Cache == nil:
		why = "the node keeps no caches"
	}
	if why != "" {
		out.missing = notPossible + why
		return out
	}
	from := dataset.ServerOf("root://" + origin.Server)
	f := k.Find(w.Node, from)
	reader, said := w.reader(from, len(w.Files))
	work := predict.Work{Bytes: float64(w.Bytes), Reads: w.Reads, Jobs: w.caches(), Reader: reader}
	reads := work.Touched(float64(w.Cache.BlockBytes)) * float64(w.Bytes)
	if reads > float64(w.Cache.Bytes) {
		out.missing = notPossible + fmt.Sprintf("what is read (%s in blocks) is more than the node's caches may hold (%s)", sizeText(reads), sizeText(float64(w.Cache.Bytes)))
		return out
	}
	cache := predict.CacheAt{Held: min(1, float64(w.Cache.HeldBytes)/max(1, reads)), BlockBytes: float64(w.Cache.BlockBytes), Ahead: float64(w.Cache.Prefetch), Streams: 1}
	ways := predict.Ways{Cache: &cache}
	if f != nil {
		ways.Source = &f.Path
	}
	for _, choice := range []predict.Choice{predict.Cold, predict.Warm} {
		if one, ok := choiceOf(predict.Table(work, ways), choice); ok {
			out.Known, out.Choice = true, choice
			out.add(k, from, f, one)
		}
	}
	if !out.Known {
		out.missing = fmt.Sprintf("what comes from %s per second was never measured", from)
		return out
	}
	out.reads = w.saysReads(said) + fmt.Sprintf("; blocks of %s; the cache holds %s, taken to be of what is read", sizeText(float64(w.Cache.BlockBytes)), sizeText(float64(w.Cache.HeldBytes)))
	return out
}

// caches are how many caches fetch at once: members of a node share theirs, and are taken to be as many on each.
func (w *Wish) caches() float64 {
	return math.Ceil(float64(max(1, w.Readers)) / float64(max(1, w.Here)))
}

func (w *Wish) saysReads(reader string) string {
	return fmt.Sprintf("reads %s of %s (%s), %s", fractionText(w.Reads), sizeText(float64(w.Bytes)), w.ReadsFrom, reader)
}

func choiceOf(all []predict.Prediction, c predict.Choice) (predict.Prediction, bool) {
	for _, p := range all {
		if p.Choice == c {
			return p, true
		}
	}
	return predict.Prediction{}, false
}

func (o *Option) add(k *Known, from string, f *Figure, p predict.Prediction) {
	o.Seconds += p.Seconds
	o.terms = append(o.terms, p.Terms)
	if f != nil {
		o.restOn(k, from, f)
	}
}

// Figures say where the numbers of the sum are from, with the age of each, or what is missing.
func (o *Option) Figures() string {
	text := o.Answer.Figures()
	if o.reads == "" || o.missing != "" {
		return text
	}
	if text == "" {
		return o.reads
	}
	return text + "; " + o.reads
}

// Sum is the prediction as a sum: "12 trips x 20 ms + 12.6 MB at 1.1 MB/s + slow start 0.08 s"; "" where nothing is predicted.
func (a *Answer) Sum() string {
	if !a.Known {
		return ""
	}
	var all []string
	for _, t := range a.terms {
		all = append(all, sumText(t))
	}
	return strings.Join(all, "; ")
}

func sumText(t predict.Terms) string {
	var parts []string
	seconds := func(name string, s float64) {
		if s >= 0.0005 {
			parts = append(parts, fmt.Sprintf("%s %.3f s", name, s))
		}
	}
	seconds("start", t.Start)
	if t.Trips*t.RoundTrip >= 0.0005 {
		parts = append(parts, fmt.Sprintf("%.4g trips x %.4g ms", t.Trips, 1e3*t.RoundTrip))
	}
	if t.Bytes > 0 {
		share := ""
		if t.Sharing > 1 {
			share = fmt.Sprintf(" (one of %.4g at once)", t.Sharing)
		}
		parts = append(parts, fmt.Sprintf("%s at %s%s", sizeText(t.Bytes), rateText(t.Rate), share))
	}
	seconds("slow start", t.Ramp)
	if t.Local >= 0.0005 {
		parts = append(parts, fmt.Sprintf("%s here at %s", sizeText(t.Local*t.LocalRate), rateText(t.LocalRate)))
	}
	seconds("work", t.Work)
	if len(parts) == 0 {
		return "nothing crosses a path"
	}
	return strings.Join(parts, " + ")
}

// sizeText says a size for people, in the units of rates.
func sizeText(bytes float64) string {
	switch {
	case bytes >= 1e9:
		return fmt.Sprintf("%.4g GB", bytes/1e9)
	case bytes >= 1e6:
		return fmt.Sprintf("%.4g MB", bytes/1e6)
	default:
		return fmt.Sprintf("%.4g kB", bytes/1e3)
	}
}

func fractionText(f float64) string { return fmt.Sprintf("%.4g", f) }

// Claim is what is recorded of a decision. The options are listed for the first of the members that have it alone.
func Claim(name string, w Wish, all []Option) api.DataClaim {
	at := Taken(all)
	taken := &all[at]
	c := api.DataClaim{Name: name, Way: taken.Way, Choice: string(taken.Choice), Reads: w.Reads, Bytes: int64(math.Round(w.Reads * float64(w.Bytes)))}
	if taken.Known {
		seconds := taken.Seconds
		c.Seconds, c.Why = &seconds, whyTaken(all, at)
	} else {
		c.Why = "nothing could be predicted, so it is copied"
	}
	for i := range all {
		o := api.DataOption{Choice: string(all[i].Choice), Sum: all[i].Sum(), Figures: all[i].Figures()}
		if all[i].Known {
			seconds := all[i].Seconds
			o.Seconds = &seconds
		}
		c.Options = append(c.Options, o)
	}
	return c
}

// whyTaken says what the next best one would have taken.
func whyTaken(all []Option, taken int) string {
	next, unknown, copies := -1, 0, 0
	for i := range all {
		if all[i].Way == api.DatasetCopy {
			if copies++; copies > 1 {
				continue
			}
		}
		switch {
		case i == taken:
		case !all[i].Known && !strings.HasPrefix(all[i].missing, notPossible):
			unknown++
		case !all[i].Known:
		case next < 0 || all[i].Seconds < all[next].Seconds:
			next = i
		}
	}
	text := "the only one on this node that could be predicted"
	if next >= 0 {
		text = fmt.Sprintf("the quickest on this node; next is %s, %.3g s later", all[next].Choice, all[next].Seconds-all[taken].Seconds)
	}
	if unknown > 0 && next >= 0 {
		text += fmt.Sprintf("; %d could not be predicted", unknown)
	}
	return text
}

// ReadsOf is what is learned of the fraction that members read of a dataset, nil if nobody has read it lately.
func ReadsOf(o *api.DataOutcomes, now time.Time) *api.DataReads {
	if o == nil {
		return nil
	}
	var fractions, perWait []float64
	var newest time.Time
	for _, r := range o.Readings {
		if r.Fraction <= 0 || now.Sub(r.At) > GoneAfter {
			continue
		}
		fractions = append(fractions, r.Fraction)
		if r.Waits > 0 {
			perWait = append(perWait, float64(r.Bytes)/float64(r.Waits))
		}
		if r.At.After(newest) {
			newest = r.At
		}
	}
	if len(fractions) == 0 {
		return nil
	}
	return &api.DataReads{Fraction: median(fractions), Members: len(fractions), At: newest, BytesPerWait: median(perWait)}
}

// ReadFraction is the fraction that members of a group are taken to read, and where that is from: what the group says, what others read before, or all.
func ReadFraction(declared float64, learned *api.DataReads, now time.Time) (fraction float64, from string) {
	switch {
	case declared > 0:
		return declared, "declared"
	case learned != nil:
		return learned.Fraction, fmt.Sprintf("learned from %d members, %s", learned.Members, agoText(max(0, now.Sub(learned.At))))
	default:
		return 1, "assumed"
	}
}

// newestReadings are kept of each dataset.
const newestReadings = 16

// Read returns outcomes with a reading in place of an older one of its member, and whether that is worth being stored.
func Read(all api.DataOutcomes, one api.DataReading) (api.DataOutcomes, bool) {
	kept := make([]api.DataReading, 0, len(all.Readings)+1)
	for _, r := range all.Readings {
		if r.Member != one.Member {
			kept = append(kept, r)
			continue
		}
		if float64(one.Bytes) < notable*float64(r.Bytes) { // after a restart of its agent, a member's count begins anew
			return all, false
		}
	}
	kept = append(kept, one)
	all.Readings = kept[max(0, len(kept)-newestReadings):]
	return all, true
}
