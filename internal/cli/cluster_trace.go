package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nearmetal/nearmetal/api"
	"github.com/nearmetal/nearmetal/api/client"
)

// traceWidth is that of the picture beside a trace, in columns.
const traceWidth = 40

func (a *app) clusterTrace() *cobra.Command {
	cmd := &cobra.Command{
		Use: "trace NAME", Short: "Show the stages of a cluster's creation and deletion, with times", Args: oneArg("cluster"), ValidArgsFunction: a.completeClusters(1),
		Long: `Show the stages in which the newest cluster of this name became ready and, once it is deleted, those in which it ended: when the first
member began a stage, when the last one finished it, and how long it took a member. Stages of different members overlap. With -o json
every stage of every member is listed.

Traces are kept in memory, for recent clusters. With OTEL_EXPORTER_OTLP_ENDPOINT in their environment, server and agents also send them to a
collector (OTLP over gRPC).`,
		Example: "  nearmetal cluster trace c1\n  nearmetal cluster trace c1 -o json",
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client(0)
		if err != nil {
			return err
		}
		trace, err := c.ClusterTrace(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		return out.print(a.Streams.Out, trace, func(w io.Writer) { writeTrace(w, trace, "") })
	}
	return cmd
}

// showTrace shows one root of a cluster's trace on standard error, after the command that was to be traced.
func (a *app) showTrace(ctx context.Context, c *client.Client, name, root string) error {
	trace, err := c.ClusterTrace(ctx, name)
	if err != nil {
		return fmt.Errorf("the trace of cluster %q can't be shown: %w", name, err)
	}
	writeTrace(a.Streams.Err, trace, root)
	return nil
}

// stage is what all members went through, in one line.
type stage struct {
	path        string
	depth       int
	first, last time.Time
	took        []float64 // seconds
	failed      int
}

// writeTrace writes the stages below each root, or below one.
func writeTrace(w io.Writer, trace api.Trace, only string) {
	t := newTable(w, "STAGE", "COUNT", "FROM", "TO", "MEDIAN", "LONGEST", "WHEN")
	for _, all := range stages(trace.Spans) {
		root := all[0]
		if only != "" && root.path != only {
			continue
		}
		end := root.last
		for _, s := range all {
			if s.last.After(end) {
				end = s.last
			}
		}
		for _, s := range all {
			name := strings.Repeat("  ", s.depth) + s.path[strings.LastIndexByte(s.path, '/')+1:]
			if s.failed > 0 {
				name += fmt.Sprintf(" (%d failed)", s.failed)
			}
			slices.Sort(s.took)
			t.row(name, strconv.Itoa(len(s.took)), milliseconds(s.first.Sub(root.first).Seconds()), milliseconds(s.last.Sub(root.first).Seconds()),
				milliseconds(s.took[len(s.took)/2]), milliseconds(s.took[len(s.took)-1]), bar(s.first.Sub(root.first), s.last.Sub(root.first), end.Sub(root.first)))
		}
	}
	t.flush()
}

// stages puts spans together by their place below a root; the root comes first, what began earlier before what began later.
func stages(spans []api.TraceSpan) [][]*stage {
	byID := map[string]*api.TraceSpan{}
	for i := range spans {
		byID[spans[i].ID] = &spans[i]
	}
	var roots [][]*stage
	byRoot := map[string]int{}
	for i := range spans {
		path, depth, ok := pathOf(byID, &spans[i])
		if !ok {
			continue // below what has not ended
		}
		root, _, _ := strings.Cut(path, "/")
		at, known := byRoot[root]
		if !known {
			at = len(roots)
			byRoot[root], roots = at, append(roots, nil)
		}
		roots[at] = addStage(roots[at], path, depth, &spans[i])
	}
	for _, all := range roots {
		slices.SortStableFunc(all, func(a, b *stage) int { return compareStages(all, a, b) })
	}
	return roots
}

func addStage(all []*stage, path string, depth int, span *api.TraceSpan) []*stage {
	ended := span.Began.Add(time.Duration(span.Seconds * float64(time.Second)))
	at := slices.IndexFunc(all, func(s *stage) bool { return s.path == path })
	if at < 0 {
		at, all = len(all), append(all, &stage{path: path, depth: depth, first: span.Began, last: ended})
	}
	s := all[at]
	s.took = append(s.took, span.Seconds)
	if span.Began.Before(s.first) {
		s.first = span.Began
	}
	if ended.After(s.last) {
		s.last = ended
	}
	if span.Failure != "" {
		s.failed++
	}
	return all
}

// compareStages orders a tree: a stage before those inside it, siblings by when they began.
func compareStages(all []*stage, a, b *stage) int {
	if strings.HasPrefix(b.path, a.path+"/") {
		return -1
	}
	if strings.HasPrefix(a.path, b.path+"/") {
		return 1
	}
	// Where they part, the stages that hold them are compared.
	pa, pb := strings.Split(a.path, "/"), strings.Split(b.path, "/")
	n := 0
	for n < len(pa) && n < len(pb) && pa[n] == pb[n] {
		n++
	}
	find := func(path []string) *stage {
		text := strings.Join(path, "/")
		return all[slices.IndexFunc(all, func(s *stage) bool { return s.path == text })]
	}
	sa, sb := find(pa[:min(n+1, len(pa))]), find(pb[:min(n+1, len(pb))])
	if c := sa.first.Compare(sb.first); c != 0 {
		return c
	}
	return strings.Compare(sa.path, sb.path)
}

// pathOf is the names of the stages that a span is in, with its own, and how many they are.
func pathOf(byID map[string]*api.TraceSpan, span *api.TraceSpan) (path string, depth int, ok bool) {
	const deepest = 16 // what nodes tell may go in circles
	path = span.Name
	for span.Parent != "" {
		if span = byID[span.Parent]; span == nil || depth == deepest {
			return "", 0, false
		}
		path = span.Name + "/" + path
		depth++
	}
	return path, depth, true
}

// milliseconds shows a short time.
func milliseconds(seconds float64) string {
	return strconv.FormatFloat(seconds*1000, 'f', 1, 64) + " ms"
}

// bar draws when a stage was, within the whole.
func bar(from, to, whole time.Duration) string {
	if whole <= 0 {
		return ""
	}
	column := func(at time.Duration) int { return min(traceWidth, max(0, int(float64(at)/float64(whole)*traceWidth))) }
	begin, end := column(from), column(to)
	begin = min(begin, traceWidth-1)
	return strings.Repeat(" ", begin) + strings.Repeat("█", max(1, end-begin))
}
