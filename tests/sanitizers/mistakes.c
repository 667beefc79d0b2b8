/* Mistakes, each of which the sanitizers must report: AddressSanitizer the first, UndefinedBehaviorSanitizer the second. */

#include <stdlib.h>

int read_past_the_end(int size)
{
    volatile char *block = calloc(1, size);
    int found = block[size];
    free((void *)block);
    return found;
}

int overflow(int value)
{
    return value + 0x7fffffff;
}
