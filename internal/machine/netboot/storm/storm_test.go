package storm

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

func client(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, byte(n >> 8), byte(n)}) }

// admitted starts a transfer and reports it once it may begin.
func admitted(c *Controller, ctx context.Context, who int, class Class, began chan<- int) {
	t, err := c.Admit(ctx, client(who), class, nil)
	if err != nil {
		return
	}
	began <- who
	<-ctx.Done()
	t.Done()
}

func TestOnlySoManyRunAndTheRestWaitInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		began := make(chan int, 200)
		var ends []context.CancelFunc
		for i := range startLimit + 10 {
			ctx, cancel := context.WithCancel(t.Context())
			ends = append(ends, cancel)
			go admitted(c, ctx, i, Load, began)
			synctest.Wait()
		}
		if s := c.State(); s.Running != startLimit || s.Waiting != 10 {
			t.Fatalf("%+v", s)
		}
		for range startLimit {
			<-began
		}
		for i := range 10 {
			ends[i]()
			synctest.Wait()
			if got := <-began; got != startLimit+i {
				t.Errorf("transfer %d began in the place of %d", got, startLimit+i)
			}
		}
		for _, end := range ends {
			end()
		}
		synctest.Wait()
		if s := c.State(); s.Running != 0 || s.Waiting != 0 {
			t.Errorf("at the end: %+v", s)
		}
	})
}

// Who has begun goes on first: its initrd comes before another one's kernel.
func TestAMachineThatHasBegunGoesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		ctx := t.Context()
		first, err := c.Admit(ctx, client(1), Load, nil) // its kernel
		if err != nil {
			t.Fatal(err)
		}
		var others []*Transfer
		for i := range startLimit - 1 {
			o, err := c.Admit(ctx, client(100+i), Load, nil)
			if err != nil {
				t.Fatal(err)
			}
			others = append(others, o)
		}
		began := make(chan int, 10)
		for _, who := range []int{201, 202, 1} { // two newcomers, then the initrd of the first
			go admitted(c, ctx, who, Load, began)
			synctest.Wait()
		}
		first.Done()
		if got := <-began; got != 1 {
			t.Errorf("%d went before the machine that had begun", got)
		}
		for _, o := range others {
			o.Done()
		}
		synctest.Wait()
	})
}

func TestOneClientDoesNotHoldAllTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		ctx, cancel := context.WithCancel(t.Context())
		began := make(chan int, 200)
		for range startLimit * 2 { // it takes many and ends none
			go admitted(c, ctx, 1, Load, began)
		}
		synctest.Wait()
		for i := range startLimit - loadsPerClient {
			go admitted(c, ctx, 100+i, Load, began)
		}
		synctest.Wait()
		others := 0
		for len(began) > 0 {
			if <-began != 1 {
				others++
			}
		}
		if others != startLimit-loadsPerClient {
			t.Errorf("%d other clients have a turn, want %d", others, startLimit-loadsPerClient)
		}
		cancel()
		synctest.Wait()
		if s := c.State(); s.Running != 0 || s.Waiting != 0 {
			t.Errorf("at the end: %+v", s)
		}
	})
}

func TestRootsAndKernelsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		ctx := t.Context()
		var running []*Transfer
		for i := range startLimit {
			tr, err := c.Admit(ctx, client(i), Load, nil)
			if err != nil {
				t.Fatal(err)
			}
			running = append(running, tr)
		}
		began := make(chan int, 100)
		for i := range 4 {
			go admitted(c, ctx, 100+i, Load, began)
			synctest.Wait()
			go admitted(c, ctx, 200+i, Read, began)
			synctest.Wait()
		}
		reads := 0
		for _, tr := range running[:4] {
			tr.Done()
			if got := <-began; got >= 200 {
				reads++
			}
		}
		if reads != 2 {
			t.Errorf("%d of 4 turns went to pieces of roots", reads)
		}
	})
}

func TestOneReaderDoesNotKeepTheOthersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		ctx := t.Context()
		var running []*Transfer
		for range startLimit {
			tr, err := c.Admit(ctx, client(1), Read, nil)
			if err != nil {
				t.Fatal(err)
			}
			running = append(running, tr)
		}
		began := make(chan int, 10)
		for _, who := range []int{1, 1, 2} {
			go admitted(c, ctx, who, Read, began)
			synctest.Wait()
		}
		running[0].Done()
		if got := <-began; got != 2 {
			t.Errorf("client %d got the next turn", got)
		}
	})
}

func TestWhoGivesUpLeavesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New()
		var running []*Transfer
		for i := range startLimit {
			tr, err := c.Admit(t.Context(), client(i), Load, nil)
			if err != nil {
				t.Fatal(err)
			}
			running = append(running, tr)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Admit(ctx, client(99), Load, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("it got %v", err)
		}
		if s := c.State(); s.Waiting != 0 {
			t.Errorf("it still waits: %+v", s)
		}
		for _, tr := range running {
			tr.Done()
			tr.Done() // twice is once
		}
		if s := c.State(); s.Running != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A link carries more with more transfers up to a point; the gauge finds about that point, and backs off at loss.
func TestTheGaugeFindsWhatTheLinkBears(t *testing.T) {
	for _, enough := range []int{8, 40, 200} {
		g := gauge{limit: startLimit}
		for range 2000 {
			g.adjust(1e9*float64(min(g.limit, enough))/float64(enough), 0, true)
		}
		if g.limit < enough*7/10 && g.limit > minLimit {
			t.Errorf("a link that needs %d transfers runs %d", enough, g.limit)
		}
	}
	g := gauge{limit: 200}
	for range 20 {
		g.adjust(1e9, 0.2, true)
	}
	if g.limit != minLimit {
		t.Errorf("a link that loses a fifth still runs %d", g.limit)
	}
	idle := gauge{limit: 30}
	for range 20 {
		idle.adjust(0, 0, false)
	}
	if idle.limit != 30 {
		t.Errorf("an idle link taught %d", idle.limit)
	}
}
