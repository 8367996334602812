package storetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/nearmetal/nearmetal/internal/store"
)

// register is what the model knows of one key.
type register struct {
	value    string
	revision int64
}

// call is an operation on the registers. A get reads one; a commit writes value to all, if register at has revision.
type call struct {
	get      bool
	at       int
	revision int64
	value    string
}

type answer struct {
	read     register // of a get
	conflict bool     // of a commit
	revision int64    // of a commit
}

const registers = 3

type registerState [registers]register

// storeModel is the sequential store: a commit makes a revision greater than all before, in every register it writes.
var storeModel = porcupine.Model{
	Init: func() any { return registerState{} },
	Step: func(state, input, output any) (bool, any) {
		st, in, out := state.(registerState), input.(call), output.(answer)
		switch {
		case in.get:
			return out.read == st[in.at], st
		case out.conflict:
			return st[in.at].revision != in.revision, st
		}
		ok := st[in.at].revision == in.revision && out.revision > st[in.at].revision
		for i := range st {
			st[i] = register{value: in.value, revision: out.revision}
		}
		return ok, st
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// linearizable records what concurrent clients see and asks porcupine for an order that explains it.
func linearizable(t *testing.T, s store.Store) {
	const clients, each = 5, 30
	seed := uint64(time.Now().UnixNano())
	start := time.Now()
	type record struct {
		ops []porcupine.Operation
		err error
	}
	records := make(chan record, clients)
	for client := range clients {
		go func() {
			rng := rand.New(rand.NewPCG(seed, uint64(client)))
			var r record
			var known register // what this client last read of register 0: sometimes stale on purpose
			for n := 0; n < each && r.err == nil; n++ {
				in := call{get: rng.IntN(2) == 0, at: rng.IntN(registers), revision: known.revision, value: fmt.Sprintf("%d.%d", client, n)}
				op := porcupine.Operation{ClientId: client, Input: in, Call: int64(time.Since(start))}
				var out answer
				out, r.err = perform(t, s, in)
				op.Output, op.Return = out, int64(time.Since(start))
				r.ops = append(r.ops, op)
				if in.get {
					known = out.read
				}
			}
			records <- r
		}()
	}
	var history []porcupine.Operation
	commits := 0
	for range clients {
		r := <-records
		must(t, r.err)
		history = append(history, r.ops...)
		for _, op := range r.ops {
			if op.Output.(answer).revision > 0 {
				commits++
			}
		}
	}
	result, _ := porcupine.CheckOperationsVerbose(storeModel, history, patience)
	if result != porcupine.Ok {
		t.Errorf("seed %d: %d operations are not linearizable (%s)", seed, len(history), result)
	}
	if commits == 0 {
		t.Errorf("seed %d: no commit succeeded, so nothing was tested", seed)
	}
}

func perform(t *testing.T, s store.Store, in call) (answer, error) {
	key := func(i int) string { return fmt.Sprint("r", i) }
	if in.get {
		e, _, err := s.Get(t.Context(), key(in.at))
		return answer{read: register{value: string(e.Value), revision: e.Revision}}, err
	}
	var ops []store.Op
	for i := range registers {
		ops = append(ops, store.Op{Key: key(i), Value: []byte(in.value)})
	}
	rev, err := s.Commit(t.Context(), []store.Cond{{Key: key(in.at), Revision: in.revision}}, ops)
	if errors.Is(err, store.ErrConflict) {
		return answer{conflict: true}, nil
	}
	return answer{revision: rev}, err
}
