// Counts the threads that a program creates, and prints their number to standard error when it ends.
//
// gcc -shared -fPIC threads.c -o threads.so -ldl; LD_PRELOAD=./threads.so PROGRAM
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

typedef int create_fn(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

static atomic_int created;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    create_fn *create = (create_fn *)dlsym(RTLD_NEXT, "pthread_create");
    created++;
    return create(thread, attributes, run, argument);
}

__attribute__((destructor)) static void print(void) { fprintf(stderr, "threads created: %d\n", created); }
