// The limit in Go: goroutines around net/http, a tokenizer, a set, and a file. No queue, no retry, no promise.
//
//	bare_go --seeds FILE --output FILE --concurrency N --per-host N [--extract]
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/html"
)

type record struct {
	URL     string `json:"url"`
	Status  int    `json:"status"`
	Headers string `json:"headers"`
	Body    string `json:"body"`
}

// crawl is what is to be fetched, and what was met.
type crawl struct {
	client  *http.Client
	extract bool

	lock    sync.Mutex
	news    *sync.Cond
	waiting []string
	seen    map[string]bool
	busy    int
	lines   *json.Encoder
}

// next waits for a URL; false when nothing is left, here and with all others.
func (c *crawl) next() (string, bool) {
	c.lock.Lock()
	defer c.lock.Unlock()
	for len(c.waiting) == 0 {
		if c.busy == 0 {
			return "", false
		}
		c.news.Wait()
	}
	found := c.waiting[0]
	c.waiting = c.waiting[1:]
	c.busy++
	return found, true
}

func (c *crawl) work() {
	for {
		page, some := c.next()
		if !some {
			return
		}
		if err := c.fetch(page); err != nil {
			log.Print(page, ": ", err)
		}
	}
}

// fetch writes the page and notes its links.
func (c *crawl) fetch(page string) error {
	found, links, err := c.get(page)
	c.lock.Lock()
	defer c.lock.Unlock()
	c.busy--
	if err == nil {
		err = c.lines.Encode(found)
	}
	for _, link := range links {
		if !c.seen[link] {
			c.seen[link] = true
			c.waiting = append(c.waiting, link)
		}
	}
	if len(links) > 0 || c.busy == 0 {
		c.news.Broadcast()
	}
	return err
}

func (c *crawl) get(page string) (found record, links []string, err error) {
	response, err := c.client.Get(page)
	if err != nil {
		return found, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return found, nil, err
	}
	headers := make(map[string]string, len(response.Header))
	for name, values := range response.Header {
		headers[name] = strings.Join(values, ", ")
	}
	text, err := json.Marshal(headers)
	if err != nil {
		return found, nil, err
	}
	if c.extract {
		links = linksOf(response.Request.URL, body)
	}
	return record{page, response.StatusCode, string(text), string(body)}, links, nil
}

// linksOf joins each link of a page once.
func linksOf(base *url.URL, body []byte) (links []string) {
	met := map[string]bool{}
	tokens := html.NewTokenizer(bytes.NewReader(body))
	for {
		switch tokens.Next() {
		case html.ErrorToken:
			return links
		case html.StartTagToken:
			href := hrefOf(tokens)
			if href == "" || met[href] {
				continue
			}
			met[href] = true
			if link, err := base.Parse(href); err == nil {
				links = append(links, link.String())
			}
		}
	}
}

// hrefOf is where the tag under way leads, without a fragment; empty when it is no link.
func hrefOf(tokens *html.Tokenizer) string {
	name, more := tokens.TagName()
	if string(name) != "a" {
		return ""
	}
	for more {
		var key, value []byte
		if key, value, more = tokens.TagAttr(); string(key) == "href" {
			href, _, _ := strings.Cut(string(value), "#")
			return href
		}
	}
	return ""
}

func main() {
	seeds := flag.String("seeds", "", "a file with a URL in each line")
	output := flag.String("output", "", "the file of the records")
	concurrency := flag.Int("concurrency", 0, "requests at a time")
	perHost := flag.Int("per-host", 0, "requests at a time to one host")
	extract := flag.Bool("extract", false, "follow links")
	flag.Parse()

	urls, err := os.ReadFile(*seeds)
	if err != nil {
		log.Fatal(err)
	}
	file, err := os.Create(*output)
	if err != nil {
		log.Fatal(err)
	}
	buffer := bufio.NewWriterSize(file, 1<<16)
	transport := &http.Transport{
		MaxConnsPerHost:     *perHost,
		MaxIdleConnsPerHost: *perHost,
		IdleConnTimeout:     90 * time.Second,
	}
	c := &crawl{
		client:  &http.Client{Transport: transport, Timeout: 2 * time.Minute},
		extract: *extract,
		waiting: strings.Fields(string(urls)),
		seen:    map[string]bool{},
		lines:   json.NewEncoder(buffer),
	}
	c.news = sync.NewCond(&c.lock)
	c.lines.SetEscapeHTML(false)
	var workers sync.WaitGroup
	for range *concurrency {
		workers.Add(1)
		go func() {
			defer workers.Done()
			c.work()
		}()
	}
	workers.Wait()
	if err := errors.Join(buffer.Flush(), file.Close()); err != nil {
		log.Fatal(err)
	}
}
